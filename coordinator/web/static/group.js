// One group: its timeline, its rebalances with their causes, its members and offsets.

import { ask, groupPath, now, topicLink } from "/static/ask.js";
import { $, announce, button, lines, put, showFacts, sync, tag } from "/static/dom.js";
import { refusedText } from "/static/elsewhere.js";
import { age, behind, clock, count, duration, inZone, number, often, ranges, showMoment, zone, zoneOf } from "/static/format.js";
import { fillState } from "/static/groups.js";
import { keyOf, openRebalance, showRebalances } from "/static/rebalances.js";
import { spark } from "/static/spark.js";
import { table } from "/static/table.js";
import { draw } from "/static/timeline.js";

const TIMELINE_ENTRIES = 1000, EVENTS_SHOWN = 200, MOVING_MS = 900e3;
const SPANS = [["fit", "fit"], ["5 min", 300e3], ["15 min", 900e3], ["1 h", 3600e3], ["6 h", 6 * 3600e3], ["24 h", 86400e3], ["all", "all"]];

const state = { group: null, span: "fit", chosen: null, timeline: null, facts: null };

// --- what is asked ---------------------------------------------------------------------------------------

async function look(current) {
  const path = groupPath(state.group);
  const [facts, past] = await Promise.all([ask(path), ask(`${path}/timeline?limit=${TIMELINE_ENTRIES}&${inZone()}`)]);
  if (!current()) return null;
  const gone = facts.status !== 200;
  $("group-empty").hidden = true;
  if (gone) refusedText($("group-empty"), facts.body, "coordinates this group", `#/groups/${encodeURIComponent(state.group)}`, ["#/", "All groups"]);
  $("group-body").hidden = gone && past.status !== 200;
  state.facts = gone ? null : facts.body;
  if (past.status === 200) state.timeline = past.body;
  show();
  return null;
}

function show() {
  const { facts, timeline } = state;
  if (facts) {
    fillState($("group-state"), facts);
    showGroupFacts(facts);
    showMembers(facts);
    showPartitions(facts);
    announce(`${facts.group} is ${facts.state} with ${count(facts.members.length + facts.more_members, "member")}`);
  } else {
    clear();
  }
  if (timeline) {
    const shown = timeline.rebalances, heard = timeline.entries.slice(-EVENTS_SHOWN);
    put($("events-zone"), `times in ${zoneOf(heard.map((each) => each.at_ms))}`);
    put($("rebalances-count"), shown.length ? `${shown.length} · times in ${zoneOf(shown.flatMap((each) => [each.started_ms, each.ended_ms ?? now()]))}` : "");
    showSpans();
    drawTimeline();
    showRebalances(timeline.rebalances, choose);
    drawEvents();
  }
}

function clear() {
  $("group-state").className = "";
  delete $("group-state").dataset.said;
  put($("group-state"), "");
  $("group-facts").replaceChildren();
  members.show([]);
  partitions.show([]);
}

function showGroupFacts(facts) {
  const trend = spark(facts.lag_trend ?? [], now(), { width: 120, height: 18 });
  const late = facts.lag && facts.lag_seconds !== null ? `, ${behind(facts.lag, facts.lag_seconds)} behind` : "";
  showFacts($("group-facts"), [
    ["members", facts.members.length + facts.more_members + (facts.pending.length ? ` + ${facts.pending.length} pending` : "")],
    [facts.type === "consumer" ? "epoch" : "generation", facts.generation],
    ["protocol", facts.type],
    ["lag", number(facts.lag) + late],
    ...(trend ? [["lag trend", trend]] : []),
    ["rebalances", often(facts.rebalances)],
    ["assignor", facts.protocol || "–"],
    ["topics", facts.topics.length ? tag("span", {}, ...facts.topics.flatMap((each, place) => [place ? ", " : "", tag("a", { href: topicLink(each) }, each)]), facts.more_topics ? ` and ${facts.more_topics} more` : "") : "–"],
    ["coordinator", `broker ${facts.broker}`],
  ]);
}

// --- members and offsets ---------------------------------------------------------------------------------

const labelOf = (member) => member.name ?? member.instance ?? (member.client_id || member.id);

/** Names of members: those that the broker gives them; or with the end of the id where others are called the same. */
function labels() {
  const known = new Map(), times = new Map();
  const mentioned = (state.timeline?.entries ?? []).map((each) => each.member).filter((each) => each?.id);
  for (const member of [...mentioned, ...(state.facts?.members ?? [])]) known.set(member.id, member);
  for (const member of known.values()) times.set(labelOf(member), (times.get(labelOf(member)) ?? 0) + 1);
  return (member) => {
    const label = labelOf(known.get(member.id) ?? member);
    return (times.get(label) ?? 0) > 1 && !member.instance ? `${label}/${member.id.slice(-6)}` : label;
  };
}

const notesOf = (each) => (each.pending ? ["took a member id, has not joined"] : [each.leader ? "leader" : "", each.owes ? `its ${each.owes} is waited for` : "", each.connected ? "" : "not connected"]).filter(Boolean);
const owned = (each) => (each.assigned ? Object.values(each.assigned).reduce((sum, some) => sum + some.length, 0) : null);

const members = table($("members"), {
  key: (each) => each.id,
  columns: [
    { name: "Member", kind: "name", by: (each) => each.label, cell: (cell, each) => { lines(cell, each.label, [each.id, ...notesOf(each)].join(" · ")); cell.title = each.id; } },
    { name: "Host", by: (each) => each.host, cell: (cell, each) => put(cell, each.host) },
    { name: "Assigned", kind: "topics", cell: (cell, each) => put(cell, each.pending ? "" : each.assigned === null ? "not readable between two assignments" : ranges(each.assigned)) },
    { name: "Partitions", kind: "number", by: owned, cell: (cell, each) => put(cell, number(owned(each))) },
    { name: "Last heard", kind: "number", by: (each) => each.silent_ms ?? null, cell: (cell, each) => put(cell, each.pending ? `${age(now() - each.issued_ms)} ago` : `${age(each.silent_ms)} ago`) },
    { name: "Session", kind: "number", by: (each) => each.session_timeout_ms ?? null, cell: (cell, each) => put(cell, each.pending ? "" : duration(each.session_timeout_ms)) },
  ],
});

function showMembers(facts) {
  const label = labels();
  put($("members-count"), facts.members.length + facts.more_members);
  const all = [...facts.members, ...facts.pending.map((each) => ({ ...each, pending: true }))].map((each) => ({ ...each, label: label(each) }));
  members.show(all.sort((a, b) => a.label.localeCompare(b.label, undefined, { numeric: true }) || (a.id < b.id ? -1 : 1)));
  const empty = $("members-empty");
  empty.hidden = all.length > 0;
  put(empty, facts.partitions.length ? "The group has no members. It keeps its offsets until it has been empty for offsets.retention.minutes." : "The group has no members.");
}

const partitions = table($("partitions"), {
  key: (each) => `${each.topic}-${each.partition}`,
  columns: [
    { name: "Partition", kind: "name", by: (each) => `${each.topic}-${each.partition}`, cell: fillPartition },
    { name: "Member", kind: "who", by: (each) => each.label, cell: (cell, each) => { put(cell, each.label ?? "–"); cell.title = each.member ?? ""; cell.classList.toggle("quiet", each.label === null); } },
    { name: "Committed", kind: "number", by: (each) => each.offset, cell: (cell, each) => put(cell, each.offset === null ? "none" : number(each.offset)) },
    { name: "End", kind: "number", by: (each) => each.end, cell: (cell, each) => put(cell, number(each.end)) },
    { name: "Lag", kind: "number", by: (each) => each.lag, cell: (cell, each) => put(cell, number(each.lag)) },
    { name: "Behind", kind: "number", by: (each) => each.lag_seconds, cell: (cell, each) => put(cell, behind(each.lag, each.lag_seconds)) },
    { name: "Last commit", kind: "number", by: (each) => each.committed_ms, cell: (cell, each) => put(cell, each.committed_ms === null ? "–" : `${age(now() - each.committed_ms)} ago`) },
  ],
});

function fillPartition(cell, each) {
  const link = cell.firstElementChild ?? cell.appendChild(tag("a"));
  link.href = topicLink(each.topic, each.partition);
  put(link, `${each.topic}-${each.partition}`);
}

function showPartitions(facts) {
  const label = labels();
  const names = new Map(facts.members.map((each) => [each.id, label(each)]));
  put($("partitions-count"), facts.partitions.length + facts.more_partitions);
  $("partitions-empty").hidden = facts.partitions.length > 0;
  partitions.show(facts.partitions.map((each) => ({ ...each, label: each.member === null ? null : names.get(each.member) ?? each.member })));
}

function drawEvents() {
  const entries = state.timeline.entries.slice(-EVENTS_SHOWN).toReversed();
  sync($("events"), entries, (each) => `${each.at_ms} ${each.broker} ${each.type} ${each.text}`, () => tag("li", {}, tag("time"), tag("span")), (item, each) => {
    showMoment(item.firstChild, each.at_ms, now());
    put(item.lastChild, each.text);
  });
  if (!entries.length) $("events").replaceChildren(tag("li", {}, tag("span", { class: "quiet" }, "none recorded yet")));
}

// --- the timeline ----------------------------------------------------------------------------------------

/** From when to when the timeline is drawn. */
function span() {
  const end = now(), rebalances = state.timeline.rebalances;
  if (typeof state.span === "number") return { from: end - state.span, to: end };
  const chosen = rebalances.find((each) => keyOf(each) === state.chosen);
  if (state.span === "chosen" && chosen) {
    const over = chosen.ended_ms ?? end, around = Math.max(over - chosen.started_ms, 1e3);
    return { from: chosen.started_ms - around, to: Math.min(over + around, end) };
  }
  // "fit" has every rebalance that is known, however long ago; "all" also what was heard before them.
  const starts = rebalances.map((each) => each.started_ms), first = state.timeline.entries[0]?.at_ms ?? end;
  const earliest = state.span !== "all" && starts.length ? Math.min(...starts) : Math.min(first, ...starts);
  return { from: end - Math.max((end - earliest) * 1.03, 30e3), to: end };
}

function showSpans() {
  const chosen = state.timeline.rebalances.find((each) => keyOf(each) === state.chosen);
  const all = chosen ? [...SPANS, [chosen.generation === null ? "chosen" : `g${chosen.generation}`, "chosen"]] : SPANS;
  sync($("spans"), all, (each) => each[0], ([name, wanted]) => button(name, () => { state.span = wanted; showSpans(); drawTimeline(); }),
    (made, [, wanted]) => made.setAttribute("aria-pressed", String(state.span === wanted)));
}

function drawTimeline() {
  if (!state.timeline || $("group-body").hidden) return;
  const { from, to } = span();
  const before = zone(from) === zone(to) ? "" : ` ${zone(from)}`;
  put($("timeline-span"), `${clock(from, now())}${before} to ${clock(to, now())} ${zone(to)}`);
  draw($("timeline"), { timeline: state.timeline, group: state.facts, now: now(), from, to, chosen: state.chosen, label: labels(), onChoose: choose });
}

function choose(key) {
  state.chosen = key;
  showSpans();
  drawTimeline();
  openRebalance(key);
}

function legend() {
  const bar = (kind, text) => tag("span", {}, tag("i", { class: kind }), text);
  const sign = (mark, text, kind = "") => tag("span", {}, tag("b", { class: kind }, mark), text);
  $("legend").replaceChildren(bar("calm", "in the group"), bar("owe", "is waited for"), bar("wait", "waits for others"), sign("×", "evicted"), sign("◆", "left", "left"), sign("▾", "heartbeat nearly too late"), sign("◇", "commit refused"));
}

new ResizeObserver(() => drawTimeline()).observe($("timeline"));
setInterval(() => {
  if (document.hidden || !state.timeline) return;
  const { from, to } = span();
  if (to - from <= MOVING_MS) drawTimeline();
}, 1000);
legend();

export const view = {
  section: "group-view",
  nav: "#/",
  title: (group) => group,
  json: (group) => groupPath(group),
  stream: (group) => `?group=${encodeURIComponent(group)}`,
  open(group) {
    Object.assign(state, { group, span: "fit", chosen: null, timeline: null, facts: null });
    put($("group-name"), group === "" ? "(the empty name)" : group);
    clear();
    for (const each of ["timeline", "rebalances", "events"]) $(each).replaceChildren();
    $("group-empty").hidden = true;
    $("group-body").hidden = false;
  },
  close() { state.timeline = null; },
  heard(entry) {
    if (state.timeline && (entry.group === state.group || entry.group === null)) {
      state.timeline.entries.push(entry);
      state.timeline.entries.splice(0, state.timeline.entries.length - TIMELINE_ENTRIES);
      drawTimeline();
      drawEvents();
    }
    return 0;
  },
  look,
};
