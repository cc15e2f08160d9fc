// Small things about elements. Texts are only ever set as text: names and records are users' input.

export const $ = (id) => document.getElementById(id);

export function tag(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [each, value] of Object.entries(attributes)) made.setAttribute(each, value);
  made.append(...children);
  return made;
}

export function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [each, value] of Object.entries(attributes)) made.setAttribute(each, value);
  made.append(...children);
  return made;
}

/** What a browser shows when the pointer rests on a shape. */
export const tip = (text) => svg("title", {}, text);

export function button(text, onClick, attributes = {}) {
  const made = tag("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", onClick);
  return made;
}

/** Set a text, unless it is there already: selections and screen readers stay undisturbed. */
export function put(holder, text) {
  const wanted = String(text);
  if (holder.textContent !== wanted) holder.textContent = wanted;
}

/** A line, and a smaller one below it. */
export function lines(cell, first, second) {
  if (cell.childNodes.length < 2) cell.replaceChildren(tag("span"), tag("span", { class: "sub" }));
  put(cell.firstChild, first);
  put(cell.lastChild, second);
}

/** Replace what is in `holder`, unless it was made of the same `said` before. */
export function redraw(holder, said, make) {
  const wanted = typeof said === "string" ? said : JSON.stringify(said);
  if (holder.dataset.said === wanted) return;
  holder.dataset.said = wanted;
  holder.replaceChildren(...make());
}

/** Bring the children of `holder` in line with `items`, keeping those that stay. Items may have the same key. */
export function sync(holder, items, keyOf, make, fill) {
  const known = new Map([...holder.children].map((child) => [child.dataset.key, child])), times = new Map();
  let place = holder.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item)), before = times.get(key) ?? 0;
    times.set(key, before + 1);
    const name = before ? `${key}\n${before}` : key;
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

/** Names and values in a row: [[name, text or element], ...]. */
export function showFacts(holder, rows) {
  sync(holder, rows, (row) => row[0], () => tag("div", {}, tag("dt"), tag("dd")), (item, [name, value]) => {
    put(item.firstChild, name);
    if (!(value instanceof Node)) put(item.lastChild, value);
    else if (!value.isEqualNode(item.lastChild.firstChild)) item.lastChild.replaceChildren(value);
  });
}

let announced = "";

/** Have screen readers say it, once. */
export function announce(text) {
  if (announced !== text) put($("announcer"), (announced = text));
}
