// A small picture of how a lag developed.

import { svg, tip } from "/static/dom.js";
import { age, number } from "/static/format.js";

/** points: [[epoch ms, records], ...], oldest first. */
export function spark(points, now, { width = 96, height = 20 } = {}) {
  if (points.length < 2) return null;
  const first = points[0][0], span = Math.max(now - first, 1), highest = Math.max(...points.map((each) => each[1]));
  const x = (at) => 1 + ((at - first) / span) * (width - 2);
  const y = (lag) => height - 1.5 - (highest ? (lag / highest) * (height - 4) : 0);
  const line = points.map(([at, lag], place) => `${place ? "L" : "M"}${x(at).toFixed(1)} ${y(lag).toFixed(1)}`).join("") + `L${x(now).toFixed(1)} ${y(points.at(-1)[1]).toFixed(1)}`;
  const said = `lag over ${age(span)}: from ${number(points[0][1])} to ${number(points.at(-1)[1])}, ${number(highest)} at most`;
  const made = svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said });
  made.append(tip(said), svg("path", { class: "area", d: `${line}V${height}H1Z` }), svg("path", { class: "line", d: line }));
  return made;
}

/** Show it in a cell; a dash while too little is known. */
export function showSpark(cell, points, now, size) {
  const said = points ? JSON.stringify([points.length, points.at(-1), points[0]]) : "";
  if (cell.dataset.said === said && cell.firstChild) return;
  cell.dataset.said = said;
  cell.replaceChildren((points && spark(points, now, size)) ?? "–");
}
