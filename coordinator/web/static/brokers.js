// The brokers of the cluster and the shards they lead; and word of those that went away.

import { ask, now } from "/static/ask.js";
import { $, button, put, redraw, showFacts, sync, tag } from "/static/dom.js";
import { age, clock, count, duration, number, zone } from "/static/format.js";
import { table } from "/static/table.js";

const KINDS = [["groups", "group"], ["transactions", "transaction"], ["topic data", "data"], ["replica lists", "replicas"]];
const NOTES = {
  group: "Each group shard is one partition of __consumer_offsets; its leader coordinates the shard's groups.",
  transaction: "Each transaction shard is one partition of __transaction_state; its leader coordinates the shard's transactional ids.",
  data: "Each data shard has a share of all topic partitions; its leader leads those partitions.",
  replicas: "Each replica list has a shard; its leader leads the partitions with that list.",
};
const FORGOTTEN_MS = 3600e3; // a broker that was gone for so long is not expected back
const state = { known: null, gone: new Map(), kind: "group" };

// --- who is there, on every view -------------------------------------------------------------------------

/** Ask who is in the cluster; the answer is a sentence about those that went away, or null. */
export async function know() {
  const { status, body } = await ask("/api/brokers");
  if (status !== 200) return null;
  for (const each of state.known?.brokers ?? []) {
    if (!body.brokers.some((one) => one.node_id === each.node_id)) state.gone.set(each.node_id, { ...each, gone_ms: now() });
  }
  for (const each of body.brokers) state.gone.delete(each.node_id);
  for (const each of state.gone.values()) if (now() - each.gone_ms > FORGOTTEN_MS) state.gone.delete(each.node_id);
  state.known = body;
  showHeader(body.brokers);
  return goneText(body);
}

/** Where else to look while this broker does not answer. */
export function otherPages() {
  const pages = new Map((state.known?.brokers ?? []).filter((each) => each.page && !each.here).map((each) => [each.page, each.node_id]));
  return [...pages].map(([page, node]) => tag("a", { href: page }, `broker ${node}`));
}

/** Whether every shard of the cluster has a broker that serves it; otherwise much is there that no list shows. */
export const isWhole = () => !state.known?.without_broker && !state.known?.brokers.some((each) => each.loading);

function goneText(body) {
  const one = body.without_broker === 1, without = `${count(body.without_broker, "shard")} ${one ? "has" : "have"} no broker`;
  if (!state.gone.size && !body.without_broker) return null;
  if (!state.gone.size) return `${without}, and what is in ${one ? "it" : "them"} is not shown: ${one ? "it is" : "they are"} moving, or the database does not respond.`;
  const names = [...state.gone.values()].map((each) => `Broker ${each.node_id} (${each.address}) left at ${clock(each.gone_ms, now())} ${zone(each.gone_ms)}`);
  const left = body.without_broker ? `${without} yet` : "other brokers lead its shards now";
  return `${names.join("; ")}: ${left}.`;
}

function showHeader(known) {
  sync($("brokers"), known, (each) => each.node_id, () => tag("li"), (item, each) => {
    redraw(item, [each.node_id, each.address, each.page, each.here, each.drained, each.loading], () => {
      const name = `broker ${each.node_id}`;
      return [
        each.page && !each.here ? tag("a", { href: each.page, title: "its page" }, name) : tag("b", {}, name), ` ${each.address}`,
        each.drained ? " · drained" : "", each.loading ? ` · loading ${count(each.loading, "shard")}` : "",
      ];
    });
  });
}

// --- the view --------------------------------------------------------------------------------------------

function stateOf(each) {
  if (each.gone_ms) return ["gone", `gone for ${age(now() - each.gone_ms)}`];
  if (each.loading) return ["loading", `loading ${count(each.loading, "shard")}${each.drained ? ", drained" : ""}`];
  return each.drained ? ["drained", "drained"] : ["serving", "serving"];
}

const brokers = table($("broker-table"), {
  key: (each) => each.node_id,
  columns: [
    { name: "Broker", kind: "name", by: (each) => each.node_id, cell: fillBroker },
    { name: "Address", kind: "who", by: (each) => each.address, cell: (cell, each) => put(cell, each.address) },
    { name: "State", kind: "status", by: (each) => stateOf(each)[0], cell: (cell, each) => { const [kind, said] = stateOf(each); redraw(cell, [kind, said], () => [tag("span", { class: `state ${kind}` }, said)]); } },
    { name: "Group shards", kind: "number", by: (each) => each.group_shards, cell: (cell, each) => put(cell, each.gone_ms ? "–" : number(each.group_shards)) },
    { name: "Transaction shards", kind: "number", by: (each) => each.transaction_shards, cell: (cell, each) => put(cell, each.gone_ms ? "–" : number(each.transaction_shards)) },
    { name: "Data shards", kind: "number", by: (each) => each.data_shards, cell: (cell, each) => put(cell, each.gone_ms ? "–" : number(each.data_shards)) },
    { name: "Connections", kind: "number", by: (each) => each.connections, title: "Each process counts its own", cell: (cell, each) => put(cell, each.gone_ms ? "–" : number(each.connections)) },
  ],
});

/** Which one it is, and where its page is. */
function fillBroker(cell, each) {
  redraw(cell, [each.node_id, each.here, each.controller, each.page, each.rack, each.gone_ms], () => {
    const page = each.gone_ms ? "" : each.here ? "this page" : each.page ? tag("a", { href: `${each.page}/#/brokers` }, "its page") : "no page";
    const notes = [page, each.controller && !each.gone_ms ? "controller" : "", each.rack ? `rack ${each.rack}` : ""].filter(Boolean);
    return [`broker ${each.node_id}`, tag("span", { class: "sub" }, ...notes.flatMap((note, place) => (place ? [" · ", note] : [note])))];
  });
}

const shards = table($("shards"), {
  key: (each) => `${each.kind} ${each.number}`,
  cards: false,
  columns: [
    { name: "Shard", kind: "number shard", by: (each) => each.number, cell: (cell, each) => put(cell, each.number) },
    { name: "Leader", by: (each) => each.broker, cell: (cell, each) => put(cell, each.broker === null ? "none" : `broker ${each.broker}`) },
    { name: "State", by: shardState, cell: (cell, each) => redraw(cell, [shardState(each), each.failure], () => [tag("span", { class: `state ${shardState(each)}` }, shardState(each).replace("-", " ")), ...(each.failure ? [tag("span", { class: "sub" }, each.failure)] : [])]) },
    { name: "Epoch", kind: "number", by: (each) => each.epoch, cell: (cell, each) => put(cell, number(each.epoch)) },
    { name: "Lease", kind: "number", by: (each) => each.remaining_ms, title: "How long it lasts unless its holder renews it", cell: (cell, each) => put(cell, each.remaining_ms === null ? "–" : duration(each.remaining_ms)) },
    { name: "Groups", kind: "number", by: (each) => each.groups, title: "Of shards that this process leads", cell: (cell, each) => put(cell, number(each.groups)) },
    { name: "Transactional ids", kind: "number", by: (each) => each.transactional_ids, title: "Of shards that this process leads", cell: (cell, each) => put(cell, number(each.transactional_ids)) },
    { name: "Partitions", kind: "number", by: (each) => each.partitions, title: "Partitions of topics that its leader leads for it", cell: (cell, each) => put(cell, number(each.partitions)) },
  ],
});

function shardState(each) {
  if (each.broker === null) return "no-leader";
  if (each.failure) return "failed";
  return each.announced ? "serving" : "loading";
}

function showKinds() {
  sync($("shard-kinds"), KINDS, (each) => each[1], ([name, kind]) => button(name, () => { state.kind = kind; showKinds(); window.dispatchEvent(new Event("look")); }),
    (made, [, kind]) => made.setAttribute("aria-pressed", String(state.kind === kind)));
  put($("shards-note"), NOTES[state.kind]);
}

export const view = {
  section: "brokers-view",
  nav: "#/brokers",
  title: () => "Brokers",
  json: () => "/api/brokers",
  open: showKinds,
  async look(current) {
    const { status, body } = await ask(`/api/shards?kind=${state.kind}`);
    if (!current()) return null;
    if (status !== 200) return body.error;
    const known = state.known;
    if (known) {
      put($("brokers-count"), known.brokers.length);
      brokers.show([...known.brokers, ...state.gone.values()]);
      showFacts($("cluster-facts"), [
        ["cluster", known.cluster_id],
        ["group shards", known.shards.group],
        ["transaction shards", known.shards.transaction],
        ["data shards", known.shards.data],
        ["shards without a broker", known.without_broker],
      ]);
    }
    put($("shards-count"), number(body.shards.length + body.more));
    shards.show(body.shards);
    $("shards-empty").hidden = body.shards.length > 0;
    return null;
  },
};
