// Tables whose columns sort. On narrow screens each row becomes a card, and a list beside the table sorts.

import { button, sync, tag } from "/static/dom.js";

/**
 * columns: [{ name, kind, by, cell, title }]. `kind` is the class of its cells; `by(item)` is what the column
 * sorts by (without it, it does not), numbers the largest first; `cell(td, item)` fills a cell. With `cards`
 * false rows stay rows on narrow screens, and the table scrolls.
 * The answer's `show(items)` shows items in the order chosen, or in theirs.
 */
export function table(element, { columns, key, cards = true }) {
  let sorting = null, shown = []; // {column, down}
  element.setAttribute("role", "table"); // it stays one where rows are cards
  element.classList.add(cards ? "cards" : "plain");
  const heads = columns.map((column) => head(column));
  const titles = tag("tr", { role: "row" }, ...heads);
  const body = tag("tbody", { role: "rowgroup" });
  element.replaceChildren(tag("thead", { role: "rowgroup" }, titles), body);
  const select = tag("select", {}, tag("option", { value: "" }, "as listed"));
  for (const [place, column] of columns.entries()) {
    if (!column.by) continue;
    select.append(tag("option", { value: `${place} down` }, `${column.name} ↓`), tag("option", { value: `${place} up` }, `${column.name} ↑`));
  }
  const chooser = tag("label", { class: "sorter" }, "Sort by ", select);
  if (cards && columns.some((column) => column.by)) element.before(chooser);
  select.addEventListener("change", () => {
    const [place, way] = select.value.split(" ");
    sort(way ? { column: columns[place], down: way === "down" } : null);
  });

  function head(column) {
    const made = tag("th", { scope: "col", role: "columnheader", class: column.kind ?? "" });
    if (column.title) made.title = column.title;
    if (!column.by) made.append(column.name);
    else made.append(button(column.name, () => sort(next(column)), { class: "sort" }));
    return made;
  }

  /** The natural way first, then the other, then as listed. */
  function next(column) {
    const down = column.kind?.includes("number") ?? false;
    if (sorting?.column !== column) return { column, down };
    return sorting.down === down ? { column, down: !down } : null;
  }

  function sort(wanted) {
    sorting = wanted;
    show(shown);
  }

  function ordered(items) {
    if (!sorting) return items;
    const { column, down } = sorting;
    return items.toSorted((a, b) => {
      const one = column.by(a), other = column.by(b);
      if (one === null || other === null) return (one === null) - (other === null); // unknown ones last
      const order = typeof one === "number" ? one - other : String(one).localeCompare(String(other), undefined, { numeric: true });
      return down ? -order : order;
    });
  }

  function show(items) {
    shown = items;
    element.hidden = items.length === 0;
    chooser.hidden = items.length < 2;
    for (const [place, column] of columns.entries()) {
      if (!column.by) continue;
      const mine = sorting?.column === column;
      heads[place].setAttribute("aria-sort", !mine ? "none" : sorting.down ? "descending" : "ascending");
    }
    select.value = sorting ? `${columns.indexOf(sorting.column)} ${sorting.down ? "down" : "up"}` : "";
    sync(body, ordered(items), key, makeRow, (row, item) => {
      for (const [place, column] of columns.entries()) column.cell(row.cells[place], item);
    });
  }

  function makeRow() {
    return tag("tr", { role: "row" }, ...columns.map((column) => tag("td", { role: "cell", class: column.kind ?? "", "data-label": column.name })));
  }

  return { show, body };
}
