// What the brokers of other processes have, and where their pages are.

import { put, redraw, tag } from "/static/dom.js";
import { count } from "/static/format.js";

/** Say in `holder` which other brokers there are, with links to `hash` of their pages; hide it without any. */
export function elsewhereText(holder, others, begin, hash = "#/") {
  holder.hidden = others.length === 0;
  redraw(holder, [others, hash], () => {
    const parts = [];
    for (const each of others) {
      const name = `broker ${each.node_id}`;
      const link = each.page ? tag("a", { href: hash === "#/" ? each.page : `${each.page}/${hash}` }, name) : `${name} (${each.address}, no page known)`;
      parts.push(parts.length ? ", " : "", link, ` with ${count(each.group_shards ?? each.transaction_shards, "shard")}`);
    }
    return parts.length ? [begin, ...parts, "."] : [];
  });
}

/** Say in `holder` how many a list leaves out, and where they are found; hide it if there are none. */
export function moreText(holder, more, noun, path) {
  holder.hidden = more === 0;
  put(holder, `${count(more, `more ${noun}`)}: search by name at ${path}?find=…`);
}

/** What is said in place of an empty list while shards are not served: there may be more than is known. */
export const notServed = (what) => [tag("p", {}, `No ${what} are known here yet: some shards have no broker or are still loading.`)];

/** Say why something is not shown: a broker that has it is linked to, where it has a page. */
export function refusedText(holder, body, what, hash, back) {
  const page = body.broker?.page;
  holder.hidden = false;
  if (page) {
    const there = `${page}/${hash}`;
    redraw(holder, there, () => [`Broker ${body.broker.node_id} ${what}; its page is at `, tag("a", { href: there }, there), "."]);
  } else {
    redraw(holder, body.error, () => [tag("strong", {}, `${body.error}.`), " ", tag("a", { href: back[0] }, back[1])]);
  }
}
