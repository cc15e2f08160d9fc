// How figures, spans and moments are written.

export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
export const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

export function duration(ms) {
  if (ms < 1000) return `${Math.max(Math.round(ms), 0)} ms`;
  if (ms < 10e3) return `${(ms / 1000).toFixed(1)} s`;
  return age(ms);
}

/** In whole seconds, minutes, hours or days, two of them at most. */
export function age(ms) {
  const seconds = Math.max(Math.floor(ms / 1000), 0);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60 ? `${seconds % 60} s` : ""}`.trim();
  const [size, unit, part, below] = seconds < 86400 ? [3600, "h", 60, "min"] : [86400, "d", 3600, "h"];
  const rest = Math.floor((seconds % size) / part);
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${below}` : ""}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  for (; value >= 1024 && unit < 5; unit++) value /= 1024;
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

/** How far behind a group is in time: known for what lags only while somebody watches the ends of logs. */
export function behind(lag, seconds) {
  return lag === 0 ? "0 s" : seconds === null ? "–" : duration(seconds * 1000);
}

/** In one unit: as 73 s, 14 min. */
const roughly = (ms) => (ms < 120e3 ? `${Math.floor(ms / 1000)} s` : `${Math.floor(ms / 60e3)} min`);

/** How often: per hour where an hour is known, otherwise within the time that is. */
export function often(rebalances) {
  if (!rebalances) return "–";
  return rebalances.within_ms >= 3600e3 ? `${rebalances.count} per hour` : `${rebalances.count} in ${roughly(rebalances.within_ms)}`;
}

/** [0, 1, 2, 5] -> "0–2, 5" */
export function runs(numbers) {
  const parts = [];
  for (const each of numbers) {
    const last = parts.at(-1);
    if (last && last[1] === each - 1) last[1] = each;
    else parts.push([each, each]);
  }
  return parts.map(([from, to]) => (from === to ? from : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`)).join(", ");
}

/** {orders: [0, 1, 2, 5]} -> "orders 0–2, 5" */
export function ranges(assigned) {
  return Object.entries(assigned).map(([topic, partitions]) => `${topic} ${runs(partitions)}`).join(" · ") || "nothing";
}

// --- moments ---------------------------------------------------------------------------------------------

/** The browser's zone by name, as Europe/Berlin. */
const zoneName = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

/** Asks for sentences with times in the browser's zone; where the broker does not know it, in its offset of today. */
export const inZone = () => `zone=${encodeURIComponent(zoneName())}&utc_offset=${-new Date().getTimezoneOffset()}`;

/** The zone in which moments are shown, as UTC, UTC+1 or UTC−3:30. */
export function zone(at = Date.now()) {
  const minutes = -new Date(at).getTimezoneOffset(), size = Math.abs(minutes);
  if (!minutes) return "UTC";
  return `UTC${minutes < 0 ? "−" : "+"}${Math.floor(size / 60)}${size % 60 ? `:${String(size % 60).padStart(2, "0")}` : ""}`;
}

/** The zone of several moments: by name where it is more than one, such as before and after a change to summer time. */
export function zoneOf(moments) {
  const zones = new Set(moments.map((at) => zone(at)));
  return zones.size > 1 ? zoneName() : [...zones][0] ?? zone();
}

/** The time of day; with the day where that is another than today's. */
export function clock(at, now = at) {
  const day = new Date(at).toDateString() === new Date(now).toDateString() ? {} : { month: "short", day: "numeric" };
  return new Date(at).toLocaleString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", ...day }).replace(",", "");
}

/** All of a moment: the day, the time to the millisecond, and the zone. */
export function moment(at) {
  const shifted = new Date(at - new Date(at).getTimezoneOffset() * 60e3);
  return Number.isNaN(shifted.getTime()) ? String(at) : `${shifted.toISOString().replace("T", " ").slice(0, -1)} ${zone(at)}`;
}

/** Let a <time> show a moment. */
export function showMoment(element, at, now) {
  const wanted = clock(at, now);
  if (element.textContent !== wanted) element.textContent = wanted;
  element.title = moment(at);
  const date = new Date(at);
  if (!Number.isNaN(date.getTime())) element.dateTime = date.toISOString();
}
