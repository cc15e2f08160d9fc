// A group's rebalances in words: when, why, and in detail once opened.

import { now } from "/static/ask.js";
import { $, put, redraw, sync, tag } from "/static/dom.js";
import { duration, showMoment } from "/static/format.js";

const BAD = new Set(["crashed", "stalled", "poll-deadline-missed", "sync-timeout", "duplicate-instance-id", "group-full"]);
const OWE = new Set(["pending-member", "slow-join", "slow-revoke", "rejoined-after-eviction", "coordinator-moved", "evicted-by-admin"]);

export const keyOf = (rebalance) => `${rebalance.generation}-${rebalance.started_ms}`;

/** The diagnosis of a rebalance, and how sure it is. */
export function diagnosisTag(each) {
  const kind = BAD.has(each.diagnosis) ? "tag bad" : OWE.has(each.diagnosis) ? "tag owe" : "tag";
  return tag("span", { class: kind }, `${each.diagnosis}${each.certainty === "certain" ? "" : ` (${each.certainty})`}`);
}

/** Show them, the newest first; `onOpen(key)` is called with one that is opened. */
export function showRebalances(all, onOpen) {
  const rebalances = all.toReversed();
  $("rebalances-empty").hidden = rebalances.length > 0;
  $("rebalances").hidden = rebalances.length === 0;
  sync($("rebalances"), rebalances, keyOf, () => makeItem(onOpen), fillItem);
}

function makeItem(onOpen) {
  const summary = tag("summary", {}, tag("time", { class: "when" }), tag("span", { class: "took" }), tag("span", { class: "generation" }), tag("span", { class: "what" }));
  const item = tag("li", {}, tag("details", {}, summary, tag("dl")));
  item.firstChild.addEventListener("toggle", () => { if (item.firstChild.open) onOpen(item.dataset.key); });
  return item;
}

function fillItem(item, each) {
  const [when, tookCell, generation, what] = item.querySelector("summary").children;
  const took = (each.ended_ms ?? now()) - each.started_ms;
  showMoment(when, each.started_ms, now());
  put(tookCell, each.ended_ms === null ? `${duration(took)} so far` : duration(took));
  put(generation, each.generation === null ? "" : `g${each.generation}`);
  redraw(what, [each.what, each.meaning, each.diagnosis, each.certainty], () => [
    each.what, tag("span", { class: "meaning" }, `${each.meaning} `, diagnosisTag(each)),
  ]);
  redraw(item.querySelector("dl"), each.lines, () => detailsOf(each.lines));
}

/** What `muster groups why` prints, without what the summary says: a label in twelve columns, then text. */
function detailsOf(lines) {
  const found = [];
  for (const line of lines.slice(1)) {
    const label = line.slice(2, 12).trim(), text = line.slice(12).trim();
    if (label) found.push([label, [text]]);
    else if (/^(→|or )/.test(text)) found.at(-1)?.[1].push(text);
    else if (found.length) found.at(-1)[1].push(`${found.at(-1)[1].pop()} ${text}`);
  }
  const shown = found.map(([label, texts]) => [label, label === "cause" ? texts.filter((text) => text.startsWith("or ")) : texts]);
  return shown.filter(([, texts]) => texts.length).flatMap(([label, texts]) => [tag("dt", {}, label === "cause" ? "perhaps" : label), tag("dd", {}, ...texts.map((text) => tag("p", {}, text)))]);
}

/** Open the one of that key, and bring it into sight. */
export function openRebalance(key) {
  for (const item of $("rebalances").children) {
    if (item.dataset.key !== key) continue;
    if (!item.firstChild.open) item.firstChild.open = true;
    item.scrollIntoView({ block: "nearest" });
  }
}
