// The list of topics.

import { ask, groupLink, topicLink } from "/static/ask.js";
import { $, put, redraw, tag } from "/static/dom.js";
import { moreText } from "/static/elsewhere.js";
import { age, bytes, number } from "/static/format.js";
import { table } from "/static/table.js";

let listed = null, before = null;

/** How long records stay, and which of them. */
export function kept(topic) {
  const parts = [];
  if (topic.cleanup_policy.includes("delete")) parts.push(topic.retention_ms < 0 ? "for ever" : age(topic.retention_ms));
  if (topic.cleanup_policy.includes("compact")) parts.push("compacted");
  return parts.join(", ") || "for ever";
}

/** Links to groups, with commas. */
export function groupLinks(groups, more) {
  const links = groups.flatMap((each, place) => [place ? ", " : "", tag("a", { href: groupLink(each) }, each || "(the empty name)")]);
  return more ? [...links, ` and ${more} more`] : links;
}

const topics = table($("topics"), {
  key: (each) => each.topic,
  columns: [
    { name: "Topic", kind: "name", by: (each) => each.topic, cell: fillName },
    { name: "Partitions", kind: "number", by: (each) => each.partitions, cell: (cell, each) => put(cell, number(each.partitions)) },
    { name: "Records", kind: "number", by: (each) => each.records, title: "Offsets from the start of each partition to its end; compaction leaves fewer records", cell: (cell, each) => put(cell, number(each.records)) },
    { name: "Size", kind: "number", by: (each) => each.size_bytes, cell: (cell, each) => put(cell, bytes(each.size_bytes)) },
    { name: "Write rate", kind: "number", by: (each) => each.rate, title: "Records a second, between the last two looks", cell: (cell, each) => put(cell, each.rate === null ? "–" : `${each.rate < 10 ? Math.round(each.rate * 10) / 10 : number(Math.round(each.rate))} /s`) },
    { name: "Retention", by: kept, cell: (cell, each) => put(cell, kept(each)) },
    { name: "Read by", kind: "topics", by: (each) => each.groups.length + each.more_groups, cell: (cell, each) => redraw(cell, [each.groups, each.more_groups], () => (each.groups.length ? groupLinks(each.groups, each.more_groups) : ["–"])) },
  ],
});

function fillName(cell, each) {
  const link = cell.firstElementChild ?? cell.appendChild(tag("a"));
  link.href = topicLink(each.topic);
  put(link, each.topic);
}

/** What was written a second since the look before, which is kept for some seconds. */
function withRates(body) {
  const ends = new Map(body.topics.map((each) => [each.topic_id, each.end]));
  for (const each of body.topics) {
    const seconds = before ? (body.at_ms - before.at_ms) / 1000 : 0, end = before?.ends.get(each.topic_id) ?? null;
    each.rate = seconds >= 1 && end !== null && each.end !== null ? Math.max(each.end - end, 0) / seconds : listed?.rates.get(each.topic_id) ?? null;
  }
  if (!before || body.at_ms - before.at_ms >= 1000) before = { at_ms: body.at_ms, ends };
  body.rates = new Map(body.topics.map((each) => [each.topic_id, each.rate]));
  return body;
}

function show() {
  const wanted = $("find-topic").value.trim().toLowerCase(), internal = $("internal").checked;
  const visible = listed.topics.filter((each) => internal || !each.internal);
  const found = visible.filter((each) => each.topic.toLowerCase().includes(wanted));
  put($("topics-count"), found.length === visible.length ? `${visible.length + listed.more}` : `${found.length} of ${visible.length + listed.more}`);
  topics.show(found);
  const empty = $("topics-empty");
  empty.hidden = found.length > 0;
  if (!found.length) redraw(empty, [wanted, visible.length, listed.more > 0], () => (visible.length ? [`No topic ${listed.more ? "listed here " : ""}has “${wanted}” in its name.`] : noTopics()));
  moreText($("topics-more"), listed.more, "topic", "/api/topics");
}

function noTopics() {
  return [
    tag("p", {}, tag("strong", {}, "No topics yet."), " A topic is created when the first record is produced to it (unless auto.create.topics.enable is off), or with:"),
    tag("pre", {}, "muster topics create demo --partitions 3"),
  ];
}

for (const each of ["find-topic", "internal"]) $(each).addEventListener("input", () => { if (listed) show(); });

export const view = {
  section: "topics-view",
  nav: "#/topics",
  title: () => "Topics",
  json: () => "/api/topics",
  open() { if (listed) show(); },
  async look(current) {
    const { status, body } = await ask("/api/topics");
    if (!current()) return null;
    if (status !== 200) return body.error;
    listed = withRates(body);
    show();
    return null;
  },
};
