// The list of groups.

import { ask, groupLink, now } from "/static/ask.js";
import { isWhole } from "/static/brokers.js";
import { $, lines, put, redraw, tag } from "/static/dom.js";
import { elsewhereText, moreText, notServed } from "/static/elsewhere.js";
import { age, behind, duration, number, often } from "/static/format.js";
import { diagnosisTag } from "/static/rebalances.js";
import { showSpark } from "/static/spark.js";
import { table } from "/static/table.js";

const RANKS = { PreparingRebalance: 0, Assigning: 0, CompletingRebalance: 1, Reconciling: 1, Stable: 2, Empty: 3, Dead: 4 };

let listed = null;

const groups = table($("groups"), {
  key: (each) => each.group,
  columns: [
    { name: "Group", kind: "name", by: (each) => each.group, cell: fillName },
    { name: "State", kind: "status", by: (each) => RANKS[each.state] ?? 9, cell: (cell, each) => fillState(only(cell, "span"), each) },
    { name: "Members", kind: "number", by: (each) => each.members, cell: (cell, each) => put(cell, each.members + (each.pending_members ? ` + ${each.pending_members} pending` : "")) },
    { name: "Lag", kind: "number", by: (each) => each.lag, cell: (cell, each) => put(cell, number(each.lag)) },
    { name: "Trend", kind: "trend", title: "How the lag developed, over an hour at most", cell: (cell, each) => showSpark(cell, each.lag_trend, now()) },
    { name: "Behind", kind: "number", by: (each) => each.lag_seconds, title: "Age of the oldest record that the group has yet to process", cell: (cell, each) => put(cell, behind(each.lag, each.lag_seconds)) },
    { name: "Rebalances", kind: "number", by: (each) => (each.rebalances ? each.rebalances.count / Math.max(each.rebalances.within_ms, 60e3) : null), title: "In the last hour, or since the group is known here", cell: (cell, each) => put(cell, often(each.rebalances)) },
    { name: "Last rebalance", kind: "rebalanced", by: (each) => (each.last_rebalance ? -each.last_rebalance.at_ms : null), cell: fillRebalanced },
    { name: "Topics", kind: "topics", by: (each) => each.topics.join(), cell: (cell, each) => put(cell, each.topics.join(", ") + (each.more_topics ? ` and ${each.more_topics} more` : "")) },
    { name: "Broker", kind: "several", by: (each) => each.broker, cell: (cell, each) => put(cell, each.broker) },
  ],
});

const only = (cell, name) => cell.firstElementChild ?? cell.appendChild(tag(name));

function fillName(cell, each) {
  const link = only(cell, "a");
  link.href = groupLink(each.group);
  put(link, each.group === "" ? "(the empty name)" : each.group);
}

export function fillState(holder, each) {
  holder.className = `state ${each.state}`;
  const since = each.rebalance?.started_ms ?? each.state_since_ms;
  const waiting = each.rebalance?.waiting_for ? `, waits for ${each.rebalance.waiting_for}` : "";
  const said = each.rebalance ? ` ${duration(now() - since)}${waiting}` : since === null ? "" : ` ${age(now() - since)}`;
  redraw(holder, [each.state, said], () => [each.state, tag("span", { class: "for" }, said)]);
}

function fillRebalanced(cell, each) {
  const last = each.last_rebalance;
  if (last === null) return redraw(cell, "", () => ["–"]);
  const who = last.member === null ? "" : `: ${last.member.name ?? last.member.instance ?? (last.member.client_id || last.member.id)}`;
  const when = `${age(now() - last.at_ms)} ago${last.generation === null ? "" : ` · g${last.generation}`}`;
  redraw(cell, [last.cause, who, when, last.diagnosis, last.certainty], () => [
    `${last.cause}${who}`,
    tag("span", { class: "sub" }, when, ...(last.diagnosis ? [" · ", diagnosisTag(last)] : [])),
  ]);
  cell.title = last.meaning ?? "";
}

function show() {
  const wanted = $("find").value.trim().toLowerCase();
  const found = listed.groups.filter((each) => !wanted || [each.group, ...each.topics].some((text) => text.toLowerCase().includes(wanted)));
  const total = listed.groups.length + listed.more;
  put($("groups-count"), found.length === total ? `${total}` : `${found.length} of ${total}`);
  $("groups").classList.toggle("one", listed.brokers.length < 2);
  groups.show(found);
  const empty = $("groups-empty");
  empty.hidden = found.length > 0;
  if (found.length === 0) redraw(empty, [total > 0, listed.more > 0, wanted, listed.brokers[0]?.address, isWhole()], () => (total > 0 ? noMatch(wanted) : isWhole() ? noGroups() : notServed("groups")));
  moreText($("groups-more"), listed.more, "group", "/api/groups");
  elsewhereText($("elsewhere"), listed.elsewhere, "Other brokers show the groups they coordinate: ", "#/");
}

function noMatch(wanted) {
  return [tag("p", {}, `No group ${listed.more ? "listed " : ""}here has “${wanted}” in its name or its topics.`)];
}

function noGroups() {
  const address = listed.brokers[0]?.address ?? "127.0.0.1:9092";
  return [
    tag("p", {}, tag("strong", {}, "No consumer groups yet."), ` A group appears here as soon as a client with a group.id joins, or commits an offset, at ${address}. To see one:`),
    tag("pre", {}, `echo hello | muster produce --bootstrap-server ${address} demo\nmuster consume --bootstrap-server ${address} --group demo-group --from-beginning demo`),
  ];
}

$("find").addEventListener("input", () => { if (listed) show(); });

export const view = {
  section: "groups-view",
  nav: "#/",
  title: () => "Groups",
  json: () => "/api/groups",
  open() { if (listed) show(); },
  /** What makes a new look worth while; a long list is a lot of work for the broker. */
  heard: () => (listed?.groups.length ?? 0) * 5,
  async look(current) {
    const { status, body } = await ask("/api/groups");
    if (!current()) return null;
    if (status !== 200) return body.error;
    listed = body;
    show();
    return null;
  },
};
