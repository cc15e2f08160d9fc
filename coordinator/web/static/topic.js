// One topic: who reads it, and its partitions.

import { ask, groupLink, topicLink, topicPath } from "/static/ask.js";
import { $, put, redraw, showFacts, tag } from "/static/dom.js";
import { elsewhereText, refusedText } from "/static/elsewhere.js";
import { bytes, moment, number, runs } from "/static/format.js";
import { table } from "/static/table.js";
import { kept } from "/static/topics.js";

let topic = null;

const groups = table($("topic-groups"), {
  key: (each) => each.group,
  columns: [
    { name: "Group", kind: "name", by: (each) => each.group, cell: (cell, each) => link(cell, groupLink(each.group), each.group || "(the empty name)") },
    { name: "Lag", kind: "number", by: (each) => each.lag, cell: (cell, each) => put(cell, number(each.lag)) },
    { name: "Assigned", by: (each) => each.assigned.length, cell: (cell, each) => put(cell, each.assigned.length ? runs(each.assigned) : "none") },
    { name: "Committed", by: (each) => each.committed.length, cell: (cell, each) => put(cell, each.committed.length ? runs(each.committed) : "none") },
  ],
});

const partitions = table($("topic-partitions"), {
  key: (each) => each.partition,
  columns: [
    { name: "Partition", kind: "name", by: (each) => each.partition, cell: (cell, each) => link(cell, topicLink(topic, each.partition), `${each.partition}`) },
    { name: "Leader", by: (each) => each.leader, cell: (cell, each) => put(cell, each.leader === null ? "none at the moment" : `broker ${each.leader}`) },
    { name: "Start", kind: "number", by: (each) => each.start, cell: (cell, each) => put(cell, number(each.start)) },
    { name: "End", kind: "number", by: (each) => each.end, cell: (cell, each) => put(cell, number(each.end)) },
    { name: "Size", kind: "number", by: (each) => each.size_bytes, cell: (cell, each) => put(cell, bytes(each.size_bytes)) },
    { name: "Read by", kind: "topics", cell: fillReaders },
    { name: "Records", kind: "look", cell: (cell, each) => link(cell, topicLink(topic, each.partition), "look at records") },
  ],
});

function link(cell, href, text) {
  const made = cell.firstElementChild ?? cell.appendChild(tag("a"));
  made.href = href;
  put(made, text);
}

function fillReaders(cell, each) {
  redraw(cell, [each.readers, each.more_readers], () => {
    const parts = each.readers.flatMap((one, place) => [
      place ? " · " : "", tag("a", { href: groupLink(one.group), title: one.member ?? "not assigned to a member" }, one.group || "(the empty name)"),
      one.offset === null ? " nothing committed" : one.lag === null ? ` at ${number(one.offset)}` : one.lag ? ` ${number(one.lag)} behind` : " at the end",
    ]);
    if (each.more_readers) parts.push(` and ${each.more_readers} more`);
    return parts.length ? parts : ["–"];
  });
}

/** By group what the partitions tell; some subscribe and have nothing yet. */
function byGroup(body) {
  const found = new Map();
  const of = (group) => {
    if (!found.has(group)) found.set(group, { group, lag: null, assigned: [], committed: [] });
    return found.get(group);
  };
  for (const group of body.groups) of(group);
  for (const part of body.partitions) {
    for (const each of part.readers) {
      const group = of(each.group);
      if (each.lag !== null) group.lag = (group.lag ?? 0) + each.lag;
      if (each.member !== null) group.assigned.push(part.partition);
      if (each.offset !== null) group.committed.push(part.partition);
    }
  }
  return [...found.values()];
}

function show(body) {
  const configs = Object.entries(body.configs);
  showFacts($("topic-facts"), [
    ["partitions", number(body.partitions.length + body.more_partitions)],
    ["records", number(body.records)],
    ["size", bytes(body.size_bytes)],
    ["kept", kept(body)],
    ...(body.created_ms ? [["created", moment(body.created_ms).replace(/\.\d+/, "")]] : []),
    ["overrides", configs.map(([name, value]) => `${name}=${value}`).join(", ") || "none"],
  ]);
  const reading = byGroup(body);
  put($("topic-groups-count"), reading.length || "");
  $("topic-groups-empty").hidden = reading.length > 0;
  groups.show(reading);
  elsewhereText($("topic-elsewhere"), body.elsewhere, "Other brokers show the groups they coordinate: ", topicLink(topic));
  put($("topic-partitions-count"), number(body.partitions.length + body.more_partitions));
  partitions.show(body.partitions);
  $("topic-more").hidden = body.more_partitions === 0;
  put($("topic-more"), `${number(body.more_partitions)} more partitions: see ${topicPath(topic)}?skip=${body.partitions.length}`);
}

export const view = {
  section: "topic-view",
  nav: "#/topics",
  title: (name) => name,
  json: (name) => topicPath(name),
  open(name) {
    topic = name;
    put($("topic-name"), name);
    $("topic-facts").replaceChildren();
    groups.show([]);
    partitions.show([]);
    $("topic-empty").hidden = true;
    $("topic-body").hidden = false;
  },
  async look(current) {
    const { status, body } = await ask(topicPath(topic));
    if (!current()) return null;
    $("topic-empty").hidden = status !== 404;
    $("topic-body").hidden = status === 404;
    if (status === 404) refusedText($("topic-empty"), body, "", "", ["#/topics", "All topics"]);
    else if (status !== 200) return body.error;
    else show(body);
    return null;
  },
};
