// The page: which view is shown, when it looks again, and whether the broker answers.

import { brokerNow, now, stopAt } from "/static/ask.js";
import { know, otherPages, view as brokers } from "/static/brokers.js";
import { $, put, tag } from "/static/dom.js";
import { clock, zone } from "/static/format.js";
import { view as group } from "/static/group.js";
import { view as groups } from "/static/groups.js";
import { view as records } from "/static/records.js";
import { view as topic } from "/static/topic.js";
import { view as topics } from "/static/topics.js";
import { view as transactions } from "/static/transactions.js";

const EVERY = 5000, SOON = 400;
const QUIET = new Set(["lag_at_commit", "heartbeat_late"]); // they come all the time, and change little
const ROUTES = [
  [/^#\/groups\/(.*)$/s, group], [/^#\/topics\/([^/]+)\/(\d+)$/, records], [/^#\/topics\/(.+)$/, topic],
  [/^#\/topics\/?$/, topics], [/^#\/transactions\/?$/, transactions], [/^#\/brokers\/?$/, brokers], [/^/, groups],
];

let shown = null, given = []; // the view, and what its address names
let place = 0, looking = null, late = false; // a number for each view that was opened, and that which is being asked for
let stream = null, again = null, answered = null;

// --- looking ---------------------------------------------------------------------------------------------

/** Look again soon, at most once per `SOON` ms; then every few seconds, while somebody looks. */
function lookAgain(wait) {
  if (again !== null && again.due <= Date.now() + wait) return;
  clearTimeout(again?.timer);
  again = { due: Date.now() + wait, timer: setTimeout(look, wait) };
}

async function look() {
  again = null;
  if (document.hidden) return; // until somebody looks
  if (looking === place) { // one look at a time, or each would be overtaken by the next while much happens
    late = true;
    return;
  }
  const mine = looking = place, current = () => mine === place;
  late = false;
  try {
    const gone = await know();
    if (!current()) return; // the view opened meanwhile looks for itself
    const refused = await shown.look(current);
    if (current()) {
      answered = now();
      notice(refused ?? gone);
    }
  } catch (error) {
    if (!["TypeError", "TimeoutError", "AbortError"].includes(error?.name)) console.error(error);
    if (current()) notAnswering();
  }
  if (!current()) return;
  looking = null;
  lookAgain(late ? SOON : EVERY);
}

function notAnswering() {
  stopAt(answered); // what is drawn goes on only while it is known to
  const since = answered === null ? "" : ` This page shows its state as of ${clock(answered, brokerNow())} ${zone(answered)}.`;
  const pages = otherPages().flatMap((each, place) => [place ? ", " : " Other brokers' pages: ", each]);
  notice(`The broker is not answering.${since} The page asks again every few seconds.`, pages);
}

function notice(text, more = []) {
  $("notice").hidden = text === null;
  if ($("notice").dataset.said === text) return;
  $("notice").dataset.said = text ?? "";
  $("notice").replaceChildren(...(text === null ? [] : [tag("span", {}, text), ...more]));
}

// --- listening -------------------------------------------------------------------------------------------

/** Listen while somebody looks: a browser has six connections to a broker at most, for all of its tabs. */
function listen() {
  stream?.close();
  stream = null;
  if (document.hidden) return;
  const mine = stream = new EventSource(`/api/events/stream${shown.stream?.(...given) ?? ""}`);
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
  if (!shown.heard) return;
  const wait = shown.heard(entry);
  if (!QUIET.has(entry.type)) lookAgain(Math.max(SOON, wait));
}

function live(kind, text) {
  $("live").className = `live ${kind}`;
  put($("live-text"), text);
}

// --- where we are ----------------------------------------------------------------------------------------

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // an address that somebody typed
  }
}

function route() {
  const [pattern, view] = ROUTES.find(([each]) => each.test(location.hash));
  if (shown !== view) shown?.close?.();
  shown = view;
  given = [...pattern.exec(location.hash)].slice(1).map(decoded);
  for (const [, each] of ROUTES) $(each.section).hidden = each !== view;
  for (const each of $("views").children) {
    if (each.getAttribute("href") === view.nav) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  document.title = `${view.title(...given)} · muster`;
  $("json").href = view.json(...given);
  view.open(...given);
  place++; // what is under way is of another view
  listen();
  lookAgain(0);
}

document.addEventListener("visibilitychange", () => {
  listen();
  if (!document.hidden) lookAgain(0);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address goes on naming the view
  $("main").focus();
});
window.addEventListener("look", () => lookAgain(0));
window.addEventListener("hashchange", () => { route(); $("main").focus(); });
route();
