// The page: a list of groups, and one group; both follow the stream of events.

import { clock, draw, key } from "/static/timeline.js";

const LIST_EVERY = 5000, GROUP_EVERY = 5000, SOON = 400, EVENTS_SHOWN = 200, TIMELINE_ENTRIES = 1000;
const SPANS = [["fit", "fit"], ["1 min", 60e3], ["5 min", 300e3], ["15 min", 900e3], ["1 h", 3600e3], ["all", "all"]];
const BAD = new Set(["crashed", "stalled", "poll-deadline-missed", "sync-timeout", "duplicate-instance-id", "group-full"]);
const OWE = new Set(["pending-member", "slow-join", "rejoined-after-eviction", "coordinator-moved", "evicted-by-admin"]);

const $ = (id) => document.getElementById(id);
const view = { group: null, span: "fit", chosen: null, timeline: null, facts: null, skew: 0, said: "" };
let stream = null, again = null, asked = 0, brokers = 0;

// --- asking ----------------------------------------------------------------------------------------------

async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  const body = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  return { status: answer.status, body };
}

/** Look again soon, at most once per `SOON` ms; then every few seconds, while somebody looks. */
function lookAgain(wait) {
  if (again !== null && again.due <= Date.now() + wait) return;
  clearTimeout(again?.timer);
  again = { due: Date.now() + wait, timer: setTimeout(look, wait) };
}

async function look() {
  again = null;
  if (document.hidden) return; // until somebody looks
  const mine = ++asked;
  try {
    await (view.group === null ? lookAtGroups(mine) : lookAtGroup(mine));
    notice(null);
  } catch (error) {
    if (mine === asked) notice("The broker does not answer. What you see is from before; it is asked again every few seconds.");
  }
  if (mine === asked) lookAgain(view.group === null ? LIST_EVERY : GROUP_EVERY);
}

function listen() {
  stream?.close();
  const path = view.group === null ? "/api/events/stream" : `/api/events/stream?group=${encodeURIComponent(view.group)}`;
  const mine = stream = new EventSource(path);
  live("", "connecting");
  mine.onopen = () => { live("on", "live"); lookAgain(0); };
  mine.addEventListener("entry", (event) => heard(JSON.parse(event.data)));
  for (const each of ["gap", "cut"]) mine.addEventListener(each, () => lookAgain(0));
  mine.onerror = () => {
    live("off", "reconnecting");
    // A refusal ends it for good, a broken connection does not.
    if (mine.readyState === EventSource.CLOSED) setTimeout(() => { if (stream === mine) listen(); }, 3000);
  };
}

function heard(entry) {
  if (view.timeline !== null && (entry.group === view.group || entry.group === null)) {
    view.timeline.entries.push(entry);
    view.timeline.entries.splice(0, view.timeline.entries.length - TIMELINE_ENTRIES);
    drawTimeline();
    drawEvents();
  }
  // What happens all the time changes little; a long list is a lot of work for the broker.
  if (!["lag_at_commit", "heartbeat_late"].includes(entry.type)) lookAgain(Math.max(SOON, view.group === null ? (listed?.groups.length ?? 0) * 5 : 0));
}

function live(kind, text) {
  $("live").className = `live ${kind}`;
  put($("live-text"), text);
}

function notice(text) {
  $("notice").hidden = text === null;
  put($("notice"), text ?? "");
}

// --- the list --------------------------------------------------------------------------------------------

let listed = null;

async function lookAtGroups(mine) {
  const { status, body } = await ask("/api/groups");
  if (mine !== asked) return;
  if (status !== 200) { notice(body.error); return; }
  listed = body;
  view.skew = body.at_ms - Date.now();
  showBrokers(body.brokers);
  showGroups();
}

function showBrokers(known) {
  brokers = known.length;
  sync($("brokers"), known, (each) => each.node_id, () => tag("li"), (item, each) => {
    item.replaceChildren(tag("b", {}, `broker ${each.node_id}`), ` ${each.address} · ${count(each.connections, "connection")}`
      + (each.loading ? ` · loading ${count(each.loading, "shard")}` : ""));
  });
}

function showGroups() {
  const wanted = $("find").value.trim().toLowerCase();
  const groups = listed.groups.filter((each) => !wanted || [each.group, ...each.topics].some((text) => text.toLowerCase().includes(wanted)));
  const total = listed.groups.length + listed.more;
  put($("groups-count"), groups.length === total ? `${total}` : `${groups.length} of ${total}`);
  $("groups").hidden = groups.length === 0;
  $("groups").classList.toggle("one", listed.brokers.length < 2);
  sync($("groups").tBodies[0], groups, (each) => each.group, groupRow, fillGroupRow);
  const empty = $("groups-empty");
  empty.hidden = groups.length > 0;
  if (groups.length === 0) empty.replaceChildren(...(total > 0 ? noMatch(wanted) : noGroups()));
  const elsewhere = $("elsewhere");
  elsewhere.hidden = listed.elsewhere.length === 0;
  elsewhere.replaceChildren(...elsewhereText(listed.elsewhere));
}

function noMatch(wanted) {
  return [tag("p", {}, `No group here has “${wanted}” in its name or its topics.`)];
}

function noGroups() {
  const address = listed.brokers[0]?.address ?? "127.0.0.1:9092";
  return [
    tag("p", {}, tag("strong", {}, "No consumer groups yet."), ` A group stands here as soon as a client with a group.id joins, or commits an offset, at ${address}. To see one:`),
    tag("pre", {}, `echo hello | muster produce --bootstrap-server ${address} demo\nmuster consume --bootstrap-server ${address} --group demo-group --from-beginning demo`),
  ];
}

function elsewhereText(others) {
  const parts = [];
  for (const each of others) {
    const name = `broker ${each.node_id}`;
    parts.push(parts.length ? ", " : "", each.page ? tag("a", { href: each.page }, name) : `${name} (${each.address}, says of no page)`, ` with ${count(each.group_shards, "shard")}`);
  }
  return parts.length ? ["Groups of other processes are shown by those that coordinate them: ", ...parts, "."] : [];
}

function groupRow() {
  const row = tag("tr");
  for (const kind of ["name", "", "number", "number", "number", "rebalanced", "topics", "several"]) row.append(tag("td", kind ? { class: kind } : {}));
  row.cells[0].append(tag("a"));
  row.cells[1].append(tag("span"));
  return row;
}

function fillGroupRow(row, each) {
  const [name, state, members, lag, behind, rebalanced, topics, broker] = row.cells;
  const link = name.firstChild;
  link.href = `#/groups/${encodeURIComponent(each.group)}`;
  put(link, each.group === "" ? "(the empty name)" : each.group);
  fillState(state.firstChild, each);
  put(members, each.members + (each.pending_members ? ` + ${each.pending_members} pending` : ""));
  put(lag, number(each.lag));
  put(behind, each.lag === 0 ? "0 s" : each.lag_seconds === null ? "–" : duration(each.lag_seconds * 1000));
  const last = each.last_rebalance;
  lines(rebalanced, last === null ? "–" : `${last.cause}${last.member === null ? "" : `: ${labelOf(last.member)}`}`, last === null ? "" : `${age(now() - last.at_ms)} ago, generation ${last.generation}`);
  put(topics, each.topics.join(", ") + (each.more_topics ? ` and ${each.more_topics} more` : ""));
  put(broker, each.broker);
}

function fillState(holder, each) {
  holder.className = `state ${each.state}`;
  const since = each.rebalance?.started_ms ?? each.state_since_ms;
  const rebalance = each.rebalance;
  const said = rebalance ? ` ${duration(now() - rebalance.started_ms)}${rebalance.waiting_for ? `, waits for ${rebalance.waiting_for}` : ""}` : since === null ? "" : ` ${age(now() - since)}`;
  const parts = [...holder.childNodes].map((child) => child.textContent);
  if (parts[0] !== each.state || parts[1] !== said) holder.replaceChildren(each.state, tag("span", { class: "for" }, said));
}

// --- one group -------------------------------------------------------------------------------------------

async function lookAtGroup(mine) {
  const path = `/api/groups/${encodeURIComponent(view.group)}`;
  const [facts, past] = await Promise.all([ask(path), ask(`${path}/timeline?limit=${TIMELINE_ENTRIES}`)]);
  if (mine !== asked) return;
  const gone = facts.status !== 200;
  $("group-empty").hidden = !gone;
  if (gone) $("group-empty").replaceChildren(...goneText(facts.body));
  $("group-body").hidden = gone && past.status !== 200;
  view.facts = gone ? null : facts.body;
  if (past.status === 200) {
    view.timeline = past.body;
    view.skew = past.body.at_ms - Date.now();
  }
  if (!gone) {
    view.skew = facts.body.at_ms - Date.now();
    showBrokers(facts.body.brokers);
  }
  showGroup();
}

function goneText(body) {
  const page = body.broker?.page;
  if (!page) return [tag("strong", {}, `${body.error}.`), " ", tag("a", { href: "#/" }, "All groups")];
  const there = `${page}/#/groups/${encodeURIComponent(view.group)}`;
  return [`Broker ${body.broker.node_id} coordinates this group; its page is at `, tag("a", { href: there }, there), "."];
}

function showGroup() {
  const { facts, timeline } = view;
  if (facts) {
    fillState($("group-state"), facts);
    showFacts(facts);
    showMembers(facts);
    showPartitions(facts);
    announce(`${facts.group} is ${facts.state} with ${count(facts.members.length + facts.more_members, "member")}`);
  } else {
    $("group-state").className = "";
    put($("group-state"), "");
    for (const each of ["group-facts"]) $(each).replaceChildren();
    for (const each of ["members", "partitions"]) $(each).tBodies[0].replaceChildren();
  }
  if (timeline) {
    showSpans();
    drawTimeline();
    showRebalances(timeline.rebalances);
    drawEvents();
  }
}

function showFacts(facts) {
  const rows = [
    ["members", facts.members.length + facts.more_members + (facts.pending.length ? ` + ${facts.pending.length} pending` : "")],
    ["generation", facts.generation],
    ["lag", number(facts.lag) + (facts.lag ? `${facts.lag_seconds === null ? "" : `, ${duration(facts.lag_seconds * 1000)} behind`}` : "")],
    ["assignor", facts.protocol || "–"],
    ["topics", facts.topics.join(", ") || "–"],
    ["coordinator", `broker ${facts.broker}`],
  ];
  sync($("group-facts"), rows, (row) => row[0], () => tag("div", {}, tag("dt"), tag("dd")), (item, [name, value]) => {
    put(item.firstChild, name);
    put(item.lastChild, value);
  });
}

const labelOf = (member) => member.instance ?? (member.client_id || member.id);

/** Names of members, with the end of the id where others are called the same. */
function labels() {
  const known = new Map();
  for (const member of [...(view.facts?.members ?? []), ...(view.timeline?.entries ?? []).map((each) => each.member).filter((each) => each?.id)]) {
    known.set(member.id, labelOf(member));
  }
  const times = new Map();
  for (const label of known.values()) times.set(label, (times.get(label) ?? 0) + 1);
  return (member) => {
    const label = labelOf(member);
    return (times.get(label) ?? 0) > 1 && !member.instance ? `${label} …${member.id.slice(-4)}` : label;
  };
}

function showMembers(facts) {
  const label = labels();
  put($("members-count"), facts.members.length + facts.more_members);
  const pending = facts.pending.map((each) => ({ ...each, pending: true }));
  const rows = [...facts.members, ...pending].sort((a, b) => label(a).localeCompare(label(b), undefined, { numeric: true }) || (a.id < b.id ? -1 : 1));
  $("members").hidden = rows.length === 0;
  sync($("members").tBodies[0], rows, (each) => each.id, () => row(["name", "", "topics", "number", "number", "number"]), (item, each) => {
    const [name, host, assigned, partitions, heard, session] = item.cells;
    const notes = each.pending ? ["took a member id, has not joined"] : [each.leader ? "leader" : "", each.owes ? `its ${each.owes} is waited for` : "", each.connected ? "" : "not connected"];
    lines(name, label(each), [each.id, ...notes.filter(Boolean)].join(" · "));
    put(host, each.host);
    put(assigned, each.pending ? "" : each.assigned === null ? "not readable between two assignments" : ranges(each.assigned));
    put(partitions, each.assigned ? Object.values(each.assigned).reduce((sum, some) => sum + some.length, 0) : "–");
    put(heard, each.pending ? `${age(now() - each.issued_ms)} ago` : `${age(each.silent_ms)} ago`);
    put(session, each.pending ? "" : duration(each.session_timeout_ms));
  });
  const empty = $("members-empty");
  empty.hidden = rows.length > 0;
  put(empty, facts.partitions.length ? "Nobody is in the group; it keeps its offsets. They expire when it has been empty for offsets.retention.minutes." : "Nobody is in the group.");
}

function showPartitions(facts) {
  const label = labels();
  const names = new Map(facts.members.map((each) => [each.id, label(each)]));
  put($("partitions-count"), facts.partitions.length + facts.more_partitions);
  $("partitions").hidden = facts.partitions.length === 0;
  $("partitions-empty").hidden = facts.partitions.length > 0;
  sync($("partitions").tBodies[0], facts.partitions, (each) => `${each.topic}-${each.partition}`, () => row(["name", "name", ...Array(5).fill("number")]), (item, each) => {
    const [name, member, offset, end, lag, behind, committed] = item.cells;
    put(name, `${each.topic}-${each.partition}`);
    put(member, each.member === null ? "–" : names.get(each.member) ?? each.member);
    member.classList.toggle("quiet", each.member === null);
    put(offset, each.offset === null ? "none" : number(each.offset));
    put(end, number(each.end));
    put(lag, number(each.lag));
    put(behind, each.lag === 0 ? "0 s" : each.lag_seconds === null ? "–" : duration(each.lag_seconds * 1000));
    put(committed, each.committed_ms === null ? "–" : `${age(now() - each.committed_ms)} ago`);
  });
}

function showRebalances(all) {
  const rebalances = all.toReversed();
  put($("rebalances-count"), rebalances.length || "");
  $("rebalances-empty").hidden = rebalances.length > 0;
  $("rebalances").hidden = rebalances.length === 0;
  sync($("rebalances"), rebalances, key, () => {
    const item = tag("li", {}, tag("details", {}, tag("summary", {}, tag("span", { class: "when" }), tag("span", { class: "generation" }), tag("span", { class: "what" })), tag("dl")));
    item.firstChild.addEventListener("toggle", () => { if (item.firstChild.open) choose(item.dataset.key); });
    return item;
  }, (item, each) => {
    const [when, generation, what] = item.querySelector("summary").children;
    const took = (each.ended_ms ?? now()) - each.started_ms;
    put(when, `${clock(each.started_ms, 0)} · ${each.ended_ms === null ? `${duration(took)} so far` : duration(took)}`);
    put(generation, each.generation === null ? "" : `g${each.generation}`);
    const kind = BAD.has(each.diagnosis) ? "tag bad" : OWE.has(each.diagnosis) ? "tag owe" : "tag";
    const said = [each.what, each.meaning, each.diagnosis, each.certainty].join("\n");
    if (what.dataset.said !== said) {
      what.dataset.said = said;
      const sure = each.certainty === "certain" ? "" : ` (${each.certainty})`;
      what.replaceChildren(each.what, tag("span", { class: "meaning" }, `${each.meaning} `, tag("span", { class: kind }, `${each.diagnosis}${sure}`)));
    }
    const details = item.querySelector("dl"), text = each.lines.join("\n");
    if (details.dataset.said !== text) {
      details.dataset.said = text;
      details.replaceChildren(...detailsOf(each.lines));
    }
  });
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

function choose(chosen) {
  view.chosen = chosen;
  drawTimeline();
  for (const item of $("rebalances").children) {
    const mine = item.dataset.key === chosen;
    if (mine && !item.firstChild.open) item.firstChild.open = true;
    if (mine) item.scrollIntoView({ block: "nearest" });
  }
}

function drawEvents() {
  const entries = view.timeline.entries.slice(-EVENTS_SHOWN).toReversed();
  const first = view.timeline.entries.length;
  sync($("events"), entries, (each) => `${each.at_ms} ${each.broker} ${each.type} ${each.text}`, () => tag("li", {}, tag("time"), tag("span")), (item, each) => {
    put(item.firstChild, clock(each.at_ms, 0));
    item.firstChild.dateTime = new Date(each.at_ms).toISOString();
    put(item.lastChild, each.text);
  });
  if (first === 0) $("events").replaceChildren(tag("li", {}, tag("span", { class: "quiet" }, "none known here yet")));
}

// --- the timeline ----------------------------------------------------------------------------------------

/** How much the timeline shows: "fit" is all that is known, up to a quarter of an hour. */
function spanMs() {
  if (typeof view.span === "number") return view.span;
  const first = Math.min(view.timeline.entries[0]?.at_ms ?? now(), ...view.timeline.rebalances.map((each) => each.started_ms));
  const known = Math.max((now() - first) * 1.03, 30e3);
  return view.span === "fit" ? Math.min(known, 900e3) : known;
}

function showSpans() {
  sync($("spans"), SPANS, (each) => each[0], ([name, span]) => {
    const button = tag("button", { type: "button" }, name);
    button.addEventListener("click", () => { view.span = span; showSpans(); drawTimeline(); });
    return button;
  }, (button, [, span]) => button.setAttribute("aria-pressed", String(view.span === span)));
}

function drawTimeline() {
  if (!view.timeline || $("group-body").hidden) return;
  draw($("timeline"), { timeline: view.timeline, group: view.facts, now: now(), spanMs: spanMs(), chosen: view.chosen, label: labels(), onChoose: choose });
}

function legend() {
  const bar = (kind, text) => tag("span", {}, tag("i", { class: kind }), text);
  const sign = (mark, text) => tag("span", {}, tag("b", {}, mark), text);
  $("legend").replaceChildren(bar("calm", "in the group"), bar("owe", "its JoinGroup is waited for"), bar("wait", "waits for the assignment"), sign("×", "evicted"), tag("span", {}, tag("b", { class: "left" }, "❘"), "left"), sign("▾", "heartbeat nearly too late"), sign("◇", "commit refused"));
}

// --- small things ----------------------------------------------------------------------------------------

const now = () => Date.now() + view.skew;
const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

function duration(ms) {
  if (ms < 1000) return `${Math.max(Math.round(ms), 0)} ms`;
  if (ms < 10e3) return `${(ms / 1000).toFixed(1)} s`;
  return age(ms);
}

/** In whole seconds, minutes, hours or days, two of them at most. */
function age(ms) {
  const seconds = Math.max(Math.floor(ms / 1000), 0);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60 ? `${seconds % 60} s` : ""}`.trim();
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** {orders: [0, 1, 2, 5]} -> "orders 0–2, 5" */
function ranges(assigned) {
  const topics = Object.entries(assigned).map(([topic, partitions]) => {
    const parts = [];
    for (const each of partitions) {
      const last = parts.at(-1);
      if (last && last[1] === each - 1) last[1] = each;
      else parts.push([each, each]);
    }
    return `${topic} ${parts.map(([from, to]) => (from === to ? from : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`)).join(", ")}`;
  });
  return topics.join(" · ") || "nothing";
}

function tag(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [each, value] of Object.entries(attributes)) made.setAttribute(each, value);
  made.append(...children);
  return made;
}

function row(kinds) {
  return tag("tr", {}, ...kinds.map((kind) => tag("td", kind ? { class: kind } : {})));
}

/** Set a text, unless it is there already: selections and screen readers stay undisturbed. */
function put(holder, text) {
  const wanted = String(text);
  if (holder.textContent !== wanted) holder.textContent = wanted;
}

function lines(cell, first, second) {
  if (cell.childNodes.length < 2) cell.replaceChildren(tag("span"), tag("span", { class: "sub" }));
  put(cell.firstChild, first);
  put(cell.lastChild, second);
}

/** Bring the children of `holder` in line with `items`, keeping those that stay. */
function sync(holder, items, keyOf, make, fill) {
  const known = new Map([...holder.children].map((child) => [child.dataset.key, child]));
  let place = holder.firstElementChild;
  for (const item of items) {
    const name = String(keyOf(item));
    let child = known.get(name);
    known.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    if (child === place) place = place.nextElementSibling;
    else holder.insertBefore(child, place);
    fill(child, item);
  }
  while (place) {
    const next = place.nextElementSibling;
    if (known.has(place.dataset.key) || place.dataset.key === undefined) place.remove();
    place = next;
  }
  for (const child of known.values()) child.remove();
}

function announce(text) {
  if (view.said !== text) {
    view.said = text;
    put($("announcer"), text);
  }
}

// --- where we are ----------------------------------------------------------------------------------------

function route() {
  const match = /^#\/groups\/(.*)$/.exec(location.hash);
  Object.assign(view, { group: match ? decodeURIComponent(match[1]) : null, span: "fit", chosen: null, timeline: null, facts: null });
  $("groups-view").hidden = view.group !== null;
  $("group-view").hidden = view.group === null;
  document.title = view.group === null ? "Groups · muster" : `${view.group} · muster`;
  if (view.group !== null) {
    put($("group-name"), view.group === "" ? "(the empty name)" : view.group);
    for (const each of ["group-facts", "timeline", "rebalances", "events", "group-state"]) $(each).replaceChildren();
    for (const each of ["members", "partitions"]) $(each).tBodies[0].replaceChildren();
    $("group-empty").hidden = true;
    $("group-body").hidden = false;
  }
  listen();
  lookAgain(0);
}

$("find").addEventListener("input", () => { if (listed) showGroups(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) lookAgain(0); });
window.addEventListener("hashchange", () => { route(); $("main").focus(); });
new ResizeObserver(() => drawTimeline()).observe($("timeline"));
setInterval(() => { if (!document.hidden && view.group !== null && view.timeline && spanMs() <= 900e3) drawTimeline(); }, 1000);
legend();
route();
