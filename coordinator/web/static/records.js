// A look at the records of one partition: it is taken when somebody asks, not again and again.

import { ask, topicLink, topicPath } from "/static/ask.js";
import { $, announce, put, redraw, tag } from "/static/dom.js";
import { refusedText } from "/static/elsewhere.js";
import { bytes, count, number, showMoment, zoneOf } from "/static/format.js";
import { table } from "/static/table.js";

const LINE = 160;

const state = { topic: "", partition: "", query: "", due: false, first: null, last: null };

const records = table($("records"), {
  key: (each) => each.offset,
  columns: [
    { name: "Offset", kind: "number offset", by: (each) => each.offset, cell: (cell, each) => put(cell, each.offset) },
    { name: "Time", kind: "when", by: (each) => each.timestamp_ms, cell: fillTime },
    { name: "Key", kind: "data key", by: (each) => line(each.key), cell: (cell, each) => { put(cell, line(each.key)); cell.classList.toggle("quiet", each.key === null); } },
    { name: "Value", kind: "data value", cell: fillValue },
    { name: "Size", kind: "number", by: (each) => each.value?.size ?? null, cell: (cell, each) => put(cell, bytes(each.value?.size)) },
  ],
});

function fillTime(cell, each) {
  if (each.timestamp_ms < 0) return put(cell, "none");
  showMoment(cell.firstElementChild ?? cell.appendChild(tag("time")), each.timestamp_ms, Date.now());
}

/** One line of a key or a value. */
function line(data) {
  if (data === null) return "null";
  if (data.hex !== undefined) return `0x${data.hex.slice(0, LINE / 4)}${data.cut || data.hex.length > LINE / 4 ? "…" : ""}`;
  const text = data.text.slice(0, LINE).replaceAll(/\s+/g, " ");
  return text === "" ? "(empty)" : `${text}${data.cut || data.text.length > LINE ? "…" : ""}`;
}

function fillValue(cell, each) {
  if (cell.firstChild) return; // a record never changes
  const summary = tag("summary", {}, line(each.value));
  const details = tag("details", {}, summary);
  details.addEventListener("toggle", () => { if (details.open && details.childNodes.length < 2) details.append(...all(each)); });
  cell.append(details);
}

/** All there is of a record, when it is opened. */
function all(record) {
  const parts = [whole("value", record.value)];
  if (record.key !== null && (record.key.cut || record.key.hex !== undefined || line(record.key) !== record.key.text)) parts.unshift(whole("key", record.key));
  if (record.headers.length) {
    parts.push(tag("dl", {}, ...record.headers.flatMap(([name, value]) => [tag("dt", {}, name), tag("dd", {}, line(value))])));
    if (record.more_headers) parts.push(tag("p", { class: "quiet" }, `and ${count(record.more_headers, "more header")}`));
  }
  return parts;
}

function whole(what, data) {
  if (data === null) return tag("p", { class: "quiet" }, `${what}: null`);
  const json = pretty(data);
  const kind = data.hex !== undefined ? "binary" : json !== null ? "JSON" : "text";
  const shown = data.hex !== undefined ? data.hex.length / 2 : new TextEncoder().encode(data.text).length;
  const head = `${what}, ${kind}, ${bytes(data.size)}${data.cut ? `: the first ${bytes(shown)}` : ""}`;
  return tag("div", {}, tag("p", { class: "quiet" }, head), tag("pre", { tabindex: "0" }, data.hex !== undefined ? dump(data.hex) : json ?? data.text));
}

/** JSON with its structure shown; null for what is none. */
function pretty(data) {
  if (data.hex !== undefined || data.cut || !/^\s*[[{]/.test(data.text)) return null;
  try {
    JSON.parse(data.text);
  } catch {
    return null;
  }
  return indented(data.text);
}

/** Whitespace alone is changed: numbers and repeated names stay as they were written. */
function indented(text) {
  let depth = 0, out = "";
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g)) {
    const opens = token === "{" || token === "[", closes = token === "}" || token === "]";
    if (closes) depth--;
    if (closes && !/[[{]$/.test(out)) out += `\n${"  ".repeat(depth)}`;
    else if (out && /[[{,]$/.test(out) && !closes) out += `\n${"  ".repeat(depth)}`;
    out += token === ":" ? ": " : token;
    if (opens) depth++;
  }
  return out;
}

/** Sixteen bytes a line, with what of them is text. */
function dump(hex) {
  const found = [];
  for (let at = 0; at < hex.length; at += 32) {
    const pairs = hex.slice(at, at + 32).match(/../g);
    const text = pairs.map((each) => parseInt(each, 16)).map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : "·")).join("");
    found.push(`${(at / 2).toString(16).padStart(4, "0")}  ${pairs.join(" ").padEnd(47)}  ${text}`);
  }
  return found.join("\n");
}

// --- which ones ------------------------------------------------------------------------------------------

function take(query) {
  state.query = query;
  state.due = true;
  window.dispatchEvent(new Event("look"));
}

function show(body) {
  const listed = body.records.toReversed();
  records.show([]);
  records.show(listed);
  const first = body.records[0]?.offset ?? null, last = body.records.at(-1)?.offset ?? null;
  // What was looked at has also the batches that are not shown.
  const offsets = [first, last, ...body.left_out.flatMap((each) => [each.offset, each.last_offset])].filter((each) => each !== null);
  state.first = offsets.length ? Math.min(...offsets) : null;
  state.last = offsets.length ? Math.max(...offsets) : null;
  $("records-older").disabled = state.first === null || state.first <= body.start;
  $("records-newer").disabled = state.last === null || state.last >= body.end - 1;
  const where = body.end === body.start ? "" : `; the partition has ${number(body.start)} to ${number(body.end - 1)}`;
  const what = first === null ? "no records" : `${count(listed.length, "record")}, offsets ${number(first)} to ${number(last)}`;
  const left = body.left_out.map((each) => ` A batch of ${count(each.records, "record")} at offset ${number(each.offset)} is not shown: ${each.why}.`);
  put($("records-said"), `${what}${where} · times in ${zoneOf(listed.map((each) => each.timestamp_ms).filter((at) => at >= 0))}.${body.cut ? " More match, but one look reads only 4 MiB." : ""}${left.join("")}`);
  $("records-empty").hidden = listed.length > 0;
  const none = noneHere(body);
  redraw($("records-empty"), none, () => [none]); // as refusals are
  announce(what);
}

/** Why a look has no records. */
function noneHere({ start, end, left_out: left, cut }) {
  if (end === start) return "The partition is empty. Produce to it, then press Newest.";
  if (left.length) return "The records here are not shown, for the reasons given above. There may be others before and after them.";
  if (cut) return "No records in the 4 MiB that one look reads. There may be others before and after them.";
  return "No records here: compaction or retention may have removed them. Newest shows what remains.";
}

$("records-newest").addEventListener("click", () => take(""));
$("records-older").addEventListener("click", () => take(`before=${state.first}`));
$("records-newer").addEventListener("click", () => take(`offset=${state.last + 1}`));
$("records-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = $("records-offset").value.trim();
  take(wanted === "" ? "" : `offset=${encodeURIComponent(wanted)}`);
});

export const view = {
  section: "records-view",
  nav: "#/topics",
  title: (topic, partition) => `${topic}-${partition}`,
  json: (topic, partition) => `${topicPath(topic)}/partitions/${partition}/records`,
  open(topic, partition) {
    Object.assign(state, { topic, partition, query: "", due: true, first: null, last: null });
    $("records-topic").href = topicLink(topic);
    put($("records-topic"), topic);
    put($("records-partition"), `partition ${partition}`);
    put($("records-said"), "");
    $("records-offset").value = "";
    $("records-older").disabled = $("records-newer").disabled = true;
    $("records-empty").hidden = true;
    records.show([]);
  },
  async look(current) {
    if (!state.due) return null;
    state.due = false;
    const { status, body } = await ask(`${view.json(state.topic, state.partition)}?${state.query}`).catch((error) => {
      state.due = true;
      throw error;
    });
    if (!current()) return null;
    if (status === 200) show(body);
    else if (status === 400) put($("records-said"), `${body.error}.`);
    else {
      records.show([]);
      put($("records-said"), "");
      refusedText($("records-empty"), body, `leads partition ${state.partition} of ${state.topic}`, topicLink(state.topic, state.partition), [topicLink(state.topic), "The topic"]);
    }
    state.due ||= status === 503; // somebody will lead it soon
    return null;
  },
};
