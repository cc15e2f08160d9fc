// The timeline of a group: a row for each member, bars for what it did, bands for rebalances.

import { svg as node, tip } from "/static/dom.js";
import { moment, zone } from "/static/format.js";
import { keyOf } from "/static/rebalances.js";

const ROW = 22, HEAD = 24, FOOT = 22, BAR = 10, LABEL_MAX = 240, ROWS_MAX = 40, TARGET = 12, NEAR_MISS_MS = 1000, PENDING_MIN = 3;
const EVICTIONS = new Set(["session expired", "new member expired", "sync timed out", "rebalance timed out", "group full", "revocation timed out", "pending member expired"]);
const FORGETS = new Set(["shard_loaded", "shard_unloaded", "group_removed"]);
const PREPARING = "PreparingRebalance";
const REVOKES = "has partitions to give up that others wait for";
const PENDING = "was given a member id and has not joined with it";

/** What a row is of: a static member keeps its row under new member ids. */
const rowOf = (member) => (member.instance ? `instance ${member.instance}` : member.id);

/** What the entries tell of each member: from when to when it was there, or had an id that it had yet to join with. */
export function lives(timeline, group) {
  const found = new Map();
  const life = (member) => {
    if (!isKnown(member)) found.set(rowOf(member), { member, spans: [], marks: [], last: 0 });
    return found.get(rowOf(member));
  };
  const isKnown = (member) => found.has(rowOf(member));
  const opened = (member, at, pending = false) => {
    life(member).spans.push({ from: at, to: null, how: null, pending });
    life(member).member = member;
  };
  const closed = (member, at, how) => {
    const span = found.get(rowOf(member))?.spans.at(-1);
    if (span && span.to === null) Object.assign(span, { to: at, how });
  };
  const seenFrom = timeline.entries.length ? timeline.entries[0].at_ms : timeline.at_ms;
  const isPending = (member) => {
    const span = found.get(rowOf(member))?.spans.at(-1);
    return span !== undefined && span.pending && span.to === null;
  };
  const added = (member, at) => {
    if (isPending(member)) closed(member, at, "joined");
    opened(member, at);
  };
  // Whoever is mentioned before it is added was there before what is known.
  const there = (member, at) => {
    if (isPending(member)) added(member, at);
    else if (!life(member).spans.length) opened(member, -Infinity);
  };
  // Ids are kept in memory only until they are used, and no longer than their group.
  const forgotten = (at) => {
    for (const { member } of found.values()) if (isPending(member)) closed(member, at, "forgotten");
  };
  for (const entry of timeline.entries) {
    const { member, at_ms: at } = entry;
    if (FORGETS.has(entry.type)) forgotten(at);
    if (!member || !member.id) continue;
    switch (entry.type) {
      case "member_id_issued": opened(member, at, true); break;
      case "pending_member_removed": {
        if (!isKnown(member)) opened(member, at - (entry.waited_ms ?? 0), true);
        closed(member, at, EVICTIONS.has(entry.trigger) ? "evicted" : "left");
        break;
      }
      case "member_added": added(member, at); break;
      case "member_removed": {
        there(member, at);
        closed(member, at, EVICTIONS.has(entry.trigger) || entry.requested_by ? "evicted" : "left");
        break;
      }
      case "member_replaced": {
        there(member, at);
        closed(member, at, "replaced");
        opened(member, at);
        break;
      }
      case "heartbeat_late": there(member, at); life(member).marks.push({ at, kind: "late" }); break;
      case "commit_refused": if (isKnown(member)) life(member).marks.push({ at, kind: "refused" }); break;
      case "member_disconnected": if (isKnown(member)) life(member).marks.push({ at, kind: "disconnected" }); break;
    }
    if (isKnown(member)) life(member).last = at;
  }
  const members = group ? group.members : [];
  const pending = group?.pending ?? [];
  const present = new Set([...members, ...pending].map(rowOf));
  for (const member of members) {
    there(member, group.at_ms);
    life(member).member = member;
  }
  for (const member of pending) if (!isKnown(member)) opened(member, member.issued_ms, true);
  // Whoever is not among the members has left: unless not all are listed, or it was heard of since they were.
  const complete = group && !group.more_members;
  for (const [key, { member, last }] of found) {
    if (complete && !present.has(key) && !(last >= group.at_ms)) closed(member, Math.max(last, seenFrom), isPending(member) ? "forgotten" : "left");
  }
  return [...found.values()];
}

/** Who is waited for now, by row: since when, and for what. The table of members and the sentences say the same. */
export function awaited(rebalances, group) {
  const found = new Map(), current = rebalances.find((each) => each.ended_ms === null);
  if (!current) return found;
  for (const each of current.waiting ?? []) found.set(rowOf(each.member), { since: each.since_ms, said: wanted(current, each) });
  if (!group?.rebalance) return found;
  for (const each of group.members) {
    const { owes } = each, since = found.get(rowOf(each))?.since ?? group.state_since_ms ?? current.started_ms;
    if (owes) found.set(rowOf(each), { since, said: owes === "revocation" ? REVOKES : asked(owes) });
    else if (current.type !== "consumer") found.delete(rowOf(each)); // the journal does not know yet that it came
  }
  if (current.state === PREPARING) {
    for (const each of group.pending ?? []) found.set(rowOf(each), { since: each.issued_ms, said: PENDING });
  }
  return found;
}

const asked = (request) => `its ${request} is waited for`;

function wanted(rebalance, { pending, partitions }) {
  if (pending) return PENDING;
  if (rebalance.type === "consumer") return partitions?.length ? REVOKES : asked("heartbeat");
  return asked(rebalance.state === "CompletingRebalance" ? "SyncGroup" : "JoinGroup");
}

/** What a member did in the rebalances: [{from, to, kind, said}], kind "owe" (it is waited for) or "wait". */
export function duties(life, rebalances, owing, now) {
  return rebalances.flatMap((each) => life.spans.flatMap((span) => {
    const from = Math.max(span.from, each.started_ms), to = Math.min(span.to ?? now, each.ended_ms ?? now);
    if (to <= from) return [];
    const tell = each.type === "consumer" ? revoked : span.pending ? awaitedToJoin : joined;
    const owed = [...tell(life, each, span), ...owedNow(life, each, owing, to)]
      .map((part) => ({ from: Math.max(part.from, from), to: Math.min(part.to, to), kind: "owe", said: part.said }))
      .filter((part) => part.to > part.from)
      .sort((a, b) => a.from - b.from);
    return [...(span.pending ? [] : waits(life, each, owed, from, to)), ...owed].sort((a, b) => a.from - b.from);
  }));
}

function owedNow(life, rebalance, owing, to) {
  const now = rebalance.ended_ms === null && owing.get(rowOf(life.member));
  return now ? [{ from: now.since, to, said: now.said }] : [];
}

/** Whether its member was gone afterwards. */
const hasEnded = (span) => span.how === "evicted" || span.how === "left";

/** When a member's JoinGroup was waited for, and when the SyncGroup of one that led: as far as the journal tells. */
function joined(life, { started_ms: began, phases }, span) {
  if (!phases) return [];
  const mine = (who) => rowOf(who) === rowOf(life.member), leaders = phases.leaders ?? [];
  // An assignment that was waited for in vain: then all had to join again.
  const ends = leaders.map((led) => led.since_ms + led.ms);
  const until = (to) => ({ from: Math.max(began, ...ends.filter((end) => end <= to)), to, said: asked("JoinGroup") });
  const took = (all) => (all ?? []).filter(([who, ms]) => mine(who) && ms !== null).map(([, ms]) => ms);
  const parts = took(phases.slowest).map((ms) => until(began + ms));
  if (phases.kept?.some(mine) && leaders.length) parts.push(until(leaders.at(-1).since_ms));
  if (hasEnded(span)) {
    if (phases.dropped?.some(mine)) parts.push(until(span.to));
    for (const ms of [...took(phases.expired), ...took(phases.left)]) parts.push({ ...until(span.to), from: span.to - ms });
  }
  for (const led of leaders) {
    if (mine(led.member)) parts.push({ from: led.since_ms, to: led.since_ms + led.ms, said: asked("SyncGroup") });
  }
  return parts;
}

/** When JoinGroups were waited for, and so a client with a member id that it had not joined with. */
function awaitedToJoin(_life, { started_ms: began, state, phases }) {
  const parts = [];
  let since = began;
  for (const led of phases?.leaders ?? []) {
    parts.push({ from: since, to: led.since_ms, said: PENDING });
    since = led.since_ms + led.ms;
  }
  if (state === PREPARING || !parts.length) parts.push({ from: since, to: state === PREPARING ? Infinity : began + (phases?.join_ms ?? Infinity), said: PENDING });
  return parts;
}

/** When a member of a consumer group had partitions to revoke. */
function revoked(life, rebalance) {
  return (rebalance.phases?.revocations ?? []).filter((one) => rowOf(one.member) === rowOf(life.member))
    .map((one) => ({ from: one.since_ms, to: one.since_ms + one.ms, said: REVOKES }));
}

/** When a member waited for others. In a consumer group nobody does but for partitions that others hold. */
function waits(life, rebalance, owed, from, to) {
  let since = from, said = "waits for the assignment";
  if (rebalance.type === "consumer") {
    const held = (rebalance.waiting ?? []).filter((one) => one.waiters?.some((who) => rowOf(who) === rowOf(life.member)));
    since = Math.max(from, Math.min(...held.map((one) => one.since_ms)));
    said = "waits for partitions that others have to give up";
  }
  const parts = [];
  for (const part of [...owed, { from: to, to }]) {
    if (part.from > since) parts.push({ from: since, to: Math.min(part.from, to), kind: "wait", said });
    since = Math.max(since, part.to);
  }
  return parts;
}

/** Draw it from `from` to `to` (epoch ms); what is under way goes on until `now`. */
export function draw(holder, { timeline, group, now, from, to, chosen, label, onChoose }) {
  const width = Math.max(holder.clientWidth, 300), spanMs = to - from;
  const within = (each) => each.rebalanced && (each.ended_ms ?? now) >= from && each.started_ms <= to;
  const rebalances = timeline.rebalances.filter(within), owing = awaited(timeline.rebalances, group);
  const all = lives(timeline, group)
    .filter((life) => life.spans.some((span) => (span.to ?? now) >= from && span.from <= to))
    .sort((a, b) => order(a, b));
  const shown = fitting(all, { rebalances, owing, from, to });
  const left = Math.min(LABEL_MAX, width * 0.4, Math.max(110, ...shown.map((life) => 22 + widthOf(label(life.member)))));
  const right = width - 14;
  const x = (at) => left + ((Math.min(Math.max(at, from), to) - from) / spanMs) * (right - left);
  const rows = Math.max(shown.length, 1);
  const bottom = HEAD + rows * ROW;
  const height = bottom + FOOT + (all.length > shown.length ? 18 : 0);
  const svg = node("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", describe(all, rebalances));

  for (const tick of ticks(from, to, right - left)) {
    svg.append(node("line", { class: "grid", x1: x(tick), x2: x(tick), y1: HEAD - 4, y2: bottom }));
    const text = node("text", { class: "axis", x: x(tick), y: bottom + 15, "text-anchor": "middle" });
    text.textContent = axisClock(tick, spanMs);
    svg.append(text);
  }
  const where = node("text", { class: "axis", x: 10, y: bottom + 15 });
  where.textContent = zone(from) === zone(to) ? zone(to) : "";
  svg.append(where);
  let labelled = -Infinity;
  for (const each of rebalances) {
    const begin = x(each.started_ms), end = Math.max(x(each.ended_ms ?? now), begin + 2);
    const band = node("rect", {
      class: `band${chosen === keyOf(each) ? " chosen" : ""}`, x: begin, y: HEAD - 4, width: end - begin, height: bottom - HEAD + 4,
    });
    band.append(tip(`${each.type === "consumer" ? "epoch" : "generation"} ${each.generation ?? "?"}: ${each.what}\n${each.meaning} (${each.diagnosis})`));
    band.addEventListener("click", () => onChoose(keyOf(each)));
    svg.append(band);
    if (end - begin < TARGET) { // wide enough to be hit
      const target = node("rect", { class: "target", x: begin - (TARGET - end + begin) / 2, y: HEAD - 4, width: TARGET, height: bottom - HEAD + 4 });
      target.append(tip(band.textContent));
      target.addEventListener("click", () => onChoose(keyOf(each)));
      svg.append(target);
    }
    if (each.generation !== null && begin - labelled > 26) {
      const text = node("text", { class: "gen", x: begin, y: HEAD - 9, "text-anchor": begin > right - 30 ? "end" : "start" });
      text.textContent = `g${each.generation}`;
      svg.append(text);
      labelled = begin;
    }
  }
  for (const entry of timeline.entries) {
    if (entry.type !== "shard_loaded" || entry.at_ms < from || entry.at_ms > to) continue;
    const line = node("line", { class: "moved", x1: x(entry.at_ms), x2: x(entry.at_ms), y1: HEAD - 4, y2: bottom });
    line.append(tip(entry.text));
    svg.append(line);
  }
  shown.forEach((life, index) => row(svg, life, { y: HEAD + index * ROW, x, left, right, from, to, now, label, owing, rebalances }));
  if (!shown.length) {
    const text = node("text", { class: "axis", x: left, y: HEAD + ROW / 2 + 4 });
    text.textContent = "no members in this span";
    svg.append(text);
  }
  if (all.length > shown.length) {
    const text = node("text", { class: "more", x: 10, y: height - 6 });
    text.textContent = `and ${all.length - shown.length} more members`;
    svg.append(text);
  }
  holder.replaceChildren(svg);
}

function row(svg, life, { y, x, left, right, from, to, now, label, owing, rebalances }) {
  const middle = y + ROW / 2;
  svg.append(node("line", { class: "row", x1: 0, x2: right, y1: y + ROW, y2: y + ROW }));
  const name = node("text", { x: 10, y: middle + 4 });
  name.textContent = shortened(label(life.member), left - 20);
  name.append(tip(`${life.member.client_id} at ${life.member.host}\n${life.member.id}`));
  svg.append(name);
  const bar = (begin, end, kind, said) => {
    if (end <= from || begin >= to || end <= begin) return;
    const rect = node("rect", { class: kind, x: x(begin), y: middle - BAR / 2, width: Math.max(x(end) - x(begin), 1.5), height: BAR, rx: 1.5 });
    if (said) rect.append(tip(said));
    svg.append(rect);
  };
  for (const span of life.spans) {
    const end = span.to ?? now;
    if (span.pending && x(end) - x(span.from) < PENDING_MIN) continue; // all begin with that
    bar(span.from, end, span.pending ? "none" : "calm", `${span.pending ? PENDING : "in the group"}${span.to === null ? "" : ` until ${moment(span.to)}: ${span.how}`}`);
  }
  // The longest last: what is too narrow to be seen apart is shown as what it was mostly.
  const parts = duties(life, rebalances, owing, now).sort((a, b) => a.to - a.from - b.to + b.from);
  for (const part of parts) bar(part.from, part.to, part.kind, part.said);
  for (const span of life.spans) {
    if (!hasEnded(span) || span.to < from || span.to > to) continue;
    const at = x(span.to);
    const mark = span.how === "evicted"
      ? node("path", { class: "end bad", d: `M${at + 1.5} ${middle - 4}l8 8m0 -8l-8 8` })
      : node("path", { class: "end left", d: `M${at} ${middle - 6}l6 6l-6 6l-6 -6z` });
    mark.append(tip(`${span.how} at ${moment(span.to)}`));
    svg.append(mark);
  }
  for (const { at, kind } of life.marks) {
    if (at < from || at > to || kind === "disconnected") continue;
    const mark = kind === "late"
      ? node("path", { class: "late", d: `M${x(at)} ${middle - 9}l3 5h-6z` })
      : node("path", { class: "refused", d: `M${x(at)} ${middle - 4}l4 4l-4 4l-4 -4z` });
    mark.append(tip(`${kind === "late" ? "a heartbeat came late" : "a commit was refused"} at ${moment(at)}`));
    svg.append(mark);
  }
}

// --- names -----------------------------------------------------------------------------------------------

const NAME_FONT = "11.5px", NAME_MAX = 200, NAME_END = 10;
const pen = document.createElement("canvas").getContext("2d");

/** How wide a name is in a row, px; of a very long one the beginning. */
function widthOf(text) {
  pen.font = `${NAME_FONT} ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text.slice(0, NAME_MAX)).width;
}

/** A name that fits into `room` px: what is too long lacks its middle, for names differ at the end. */
function shortened(text, room) {
  if (text.length <= NAME_MAX && widthOf(text) <= room) return text;
  const signs = [...text], cut = (count) => {
    const end = Math.min(NAME_END, count >> 1);
    return `${signs.slice(0, count - end).join("")}…${signs.slice(signs.length - end).join("")}`;
  };
  let fits = 2, more = Math.min(signs.length, NAME_MAX - 1);
  while (more - fits > 1) {
    const middle = (fits + more) >> 1;
    if (widthOf(cut(middle)) <= room) fits = middle;
    else more = middle;
  }
  return cut(fits);
}

// --- rows ------------------------------------------------------------------------------------------------

const isGone = (life) => life.spans.at(-1)?.to !== null;
const byName = new Intl.Collator(undefined, { numeric: true });

function order(a, b) {
  const name = (life) => life.member.instance ?? life.member.client_id;
  return isGone(a) - isGone(b) || byName.compare(name(a), name(b)) || (a.member.id < b.member.id ? -1 : 1);
}

/** Those that there is room for, in the same order: first who is waited for, was evicted, or held up the others; half are there. */
function fitting(all, { rebalances, owing, from, to }) {
  if (all.length <= ROWS_MAX) return all;
  const turns = new Map([...owing.keys()].map((key, turn) => [key, turn])), held = heldUp(rebalances);
  const seen = (at) => at >= from && at <= to;
  const ranked = all.map((life) => ({
    life,
    turn: turns.get(rowOf(life.member)) ?? Infinity,
    evicted: life.spans.some((span) => span.how === "evicted" && seen(span.to)),
    ms: Math.max(held.get(rowOf(life.member)) ?? 0, life.marks.some((mark) => seen(mark.at)) ? NEAR_MISS_MS : 0),
    until: life.spans.at(-1)?.to ?? 0,
  })).sort((a, b) => a.turn - b.turn || b.evicted - a.evicted || b.ms - a.ms || b.until - a.until);
  const here = ranked.filter(({ life }) => !isGone(life));
  const gone = ranked.filter(({ life }) => isGone(life)).slice(0, Math.max(ROWS_MAX - here.length, ROWS_MAX / 2));
  const fit = new Set([...here.slice(0, ROWS_MAX - gone.length), ...gone].map(({ life }) => life));
  return all.filter((life) => fit.has(life));
}

/** How long members held up one of the rebalances: ms by row, of the slowest of each. */
function heldUp(rebalances) {
  const found = new Map();
  const note = (who, ms) => found.set(rowOf(who), Math.max(found.get(rowOf(who)) ?? 0, ms ?? 0));
  for (const { phases } of rebalances) {
    for (const [who, ms] of ["slowest", "held_up", "expired", "left"].flatMap((name) => phases?.[name] ?? [])) note(who, ms);
    for (const { member, ms } of ["leaders", "revocations"].flatMap((name) => phases?.[name] ?? [])) note(member, ms);
    for (const who of ["dropped", "kept"].flatMap((name) => phases?.[name] ?? [])) note(who, phases.join_ms ?? phases.reconcile_ms);
  }
  return found;
}

function describe(members, rebalances) {
  return `Timeline of ${members.length} members with ${rebalances.length} rebalances; the lists below say the same in words.`;
}

function ticks(from, now, width) {
  const wanted = Math.max(2, Math.floor(width / 110));
  const steps = [5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 14400e3, 43200e3, 86400e3, 604800e3];
  const step = steps.find((each) => (now - from) / each <= wanted) ?? steps.at(-1);
  const zone = new Date(now).getTimezoneOffset() * 60e3;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= now; at += step) found.push(at);
  return found;
}

/** A tick's time of day; with seconds where they matter, and with the day where the span has several. */
function axisClock(at, spanMs) {
  const day = spanMs > 86400e3 ? { month: "short", day: "numeric" } : {};
  const seconds = spanMs <= 900e3 ? { second: "2-digit" } : {};
  return new Date(at).toLocaleString("en-GB", { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...seconds, ...day }).replace(",", "");
}
