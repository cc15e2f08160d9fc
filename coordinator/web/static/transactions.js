// Transactions: who holds back whom since when, and where transactional ids stand.

import { ask, groupLink, now, topicLink } from "/static/ask.js";
import { isWhole } from "/static/brokers.js";
import { $, lines, put, redraw, tag } from "/static/dom.js";
import { elsewhereText, moreText, notServed } from "/static/elsewhere.js";
import { age, count, duration, moment, number } from "/static/format.js";
import { table } from "/static/table.js";

const PASSING_MS = 5000; // transactions come and go: one that is younger holds back nobody to speak of
const RANKS = { Ongoing: 0, PrepareCommit: 1, PrepareAbort: 1 };
const OFFSETS = "__consumer_offsets";

let listed = null;

// --- who is held back ------------------------------------------------------------------------------------

const who = (each) => each.transactional_id ?? `producer ${each.producer_id}`;
const openFor = (each) => (each.since_ms === null ? null : Math.max(now() - each.since_ms, 0));
const records = (each) => (each.end === null ? null : each.end - each.last_stable_offset);

const held = table($("held"), {
  key: (each) => `${each.topic} ${each.partition} ${each.producer_id}`,
  columns: [
    { name: "Partition", kind: "name", by: (each) => `${each.topic}-${each.partition}`, cell: fillPartition },
    { name: "Held back by", kind: "who", by: who, cell: fillWho },
    { name: "Since", kind: "number", by: (each) => openFor(each), title: "When its first record was written", cell: fillSince },
    { name: "State", kind: "verdict", by: (each) => each.verdict, cell: fillVerdict },
    { name: "Records", kind: "number", by: records, title: "From where it begins to the end of the partition", cell: (cell, each) => put(cell, number(records(each))) },
    { name: "Groups", kind: "topics", by: (each) => each.groups.length + each.more_groups, title: "Those that stand there or have yet to come there. Only readers of committed records are held back", cell: fillGroups },
  ],
});

function fillPartition(cell, each) {
  redraw(cell, [each.topic, each.partition], () => [each.topic === OFFSETS ? `${each.topic}-${each.partition}` : tag("a", { href: topicLink(each.topic) }, `${each.topic}-${each.partition}`)]);
}

function fillWho(cell, each) {
  const producer = each.transactional_id === null ? "" : `producer ${each.producer_id}, `;
  const others = each.other_transactions ? ` · ${number(each.other_transactions)} more behind it` : "";
  lines(cell, who(each), `${producer}epoch ${each.producer_epoch}${others}`);
}

function fillSince(cell, each) {
  put(cell, each.since_ms === null ? "–" : age(openFor(each)));
  cell.title = each.since_ms === null ? "" : moment(each.since_ms);
}

function fillVerdict(cell, each) {
  redraw(cell, [each.verdict, each.why], () => [
    tag("span", { class: `state ${each.verdict.replaceAll(" ", "-")}` }, each.verdict),
    ...(each.why ? [tag("span", { class: "sub" }, each.why)] : []),
    ...(each.verdict === "hanging" ? [tag("code", { class: "sub" }, `muster transactions abort --topic ${each.topic} --partition ${each.partition} ${each.start_offset === null ? `--producer-id ${each.producer_id}` : `--start-offset ${each.start_offset}`}`)] : []),
  ]);
}

function fillGroups(cell, each) {
  redraw(cell, [each.groups, each.more_groups], () => {
    const said = each.groups.flatMap((group, place) => [place ? ", " : "", tag("a", { href: groupLink(group.group) }, group.group || "(the empty name)"), ` ${standing(group)}`]);
    return said.length ? [...said, each.more_groups ? ` and ${each.more_groups} more` : ""] : ["none here"];
  });
}

function standing(group) {
  if (group.offset === null) return "waits for its offsets";
  return group.before ? `has ${number(group.before)} to go` : `stands there, ${number(group.lag)} behind`;
}

// --- transactional ids -----------------------------------------------------------------------------------

const ids = table($("transactions"), {
  key: (each) => each.transactional_id,
  columns: [
    { name: "Transactional id", kind: "name", by: (each) => each.transactional_id, cell: (cell, each) => put(cell, each.transactional_id) },
    { name: "State", kind: "status", by: (each) => RANKS[each.state] ?? 9, cell: fillState },
    { name: "Timeout", kind: "number", by: (each) => each.timeout_ms, title: "How long a transaction may be open before its coordinator aborts it", cell: (cell, each) => put(cell, duration(each.timeout_ms)) },
    { name: "Partitions", kind: "number", by: (each) => each.partitions, cell: fillPartitions },
    { name: "Producer", kind: "number", by: (each) => each.producer_id, title: "Producer id and epoch", cell: (cell, each) => put(cell, `${each.producer_id} · ${each.producer_epoch}`) },
    { name: "Topics", kind: "topics", by: (each) => each.topics.join(), cell: (cell, each) => put(cell, (each.topics.join(", ") || "–") + (each.more_topics ? ` and ${each.more_topics} more` : "")) },
    { name: "Coordinator", kind: "several", by: (each) => each.broker, cell: (cell, each) => put(cell, `broker ${each.broker}`) },
  ],
});

function fillState(cell, each) {
  const said = ` ${age(now() - (each.started_ms ?? each.updated_ms))}`;
  redraw(cell, [each.state, said], () => [tag("span", { class: `state ${each.state}` }, each.state, tag("span", { class: "for" }, said))]);
}

function fillPartitions(cell, each) {
  const missing = each.state.startsWith("Prepare") ? `${count(each.unmarked, "marker")} missing` : "";
  lines(cell, number(each.partitions), missing);
}

// --- the view --------------------------------------------------------------------------------------------

function show() {
  const back = listed.held_back.filter((each) => each.verdict === "hanging" || (openFor(each) ?? Infinity) >= PASSING_MS);
  $("held-part").hidden = back.length === 0;
  const hanging = back.filter((each) => each.verdict === "hanging").length;
  const more = listed.more_held_back ? ` and ${number(listed.more_held_back)} more` : "";
  put($("held-count"), `${count(back.length, "partition")}${more}${hanging ? `, ${hanging} by hanging transactions` : ""}`);
  held.show(back);
  const wanted = $("find-transaction").value.trim().toLowerCase();
  const found = listed.transactions.filter((each) => [each.transactional_id, ...each.topics].some((text) => text.toLowerCase().includes(wanted)));
  const total = listed.transactions.length + listed.more;
  put($("transactions-count"), found.length === total ? `${total}` : `${found.length} of ${total}`);
  $("transactions").classList.toggle("one", listed.brokers.length < 2);
  ids.show(found);
  const empty = $("transactions-empty");
  empty.hidden = found.length > 0;
  if (!found.length) redraw(empty, [total > 0, listed.more > 0, wanted, isWhole()], () => (total > 0 ? [`No transactional id ${listed.more ? "listed " : ""}here has “${wanted}” in its name or its topics.`] : isWhole() ? none() : notServed("transactional ids")));
  moreText($("transactions-more"), listed.more, "transactional id", "/api/transactions");
  elsewhereText($("transactions-elsewhere"), listed.elsewhere, "Other brokers show the transactional ids they coordinate, and what is held back on the partitions they lead: ", "#/transactions");
}

function none() {
  return [tag("p", {}, tag("strong", {}, "No transactional ids yet."), " One appears here as soon as a producer with a transactional.id has started its transactions.")];
}

$("find-transaction").addEventListener("input", () => { if (listed) show(); });

export const view = {
  section: "transactions-view",
  nav: "#/transactions",
  title: () => "Transactions",
  json: () => "/api/transactions",
  open() { if (listed) show(); },
  async look(current) {
    const { status, body } = await ask("/api/transactions");
    if (!current()) return null;
    if (status !== 200) return body.error;
    listed = body;
    show();
    return null;
  },
};
