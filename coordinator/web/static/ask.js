// Asking the broker, and what time it is there.

const PATIENCE = 10e3;
let skew = 0, stopped = null;

/** Milliseconds since the epoch by the broker's clock. */
export const brokerNow = () => Date.now() + skew;
/** The same; while the broker does not answer, the moment that the page shows. */
export const now = () => stopped ?? brokerNow();

/** The broker does not answer: until it does, `now` is `at`, or goes on if that is null. */
export function stopAt(at) {
  stopped = at;
}

/** {status, body}; raises when there is no answer in time. */
export async function ask(path) {
  // In full: the page's own address may have a login in it, which fetch refuses.
  const answer = await fetch(location.origin + path, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(PATIENCE) });
  const body = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  stopped = null;
  if (answer.status === 200 && typeof body.at_ms === "number") skew = body.at_ms - Date.now();
  return { status: answer.status, body };
}

export const groupPath = (group) => `/api/groups/${encodeURIComponent(group)}`;
export const topicPath = (topic) => `/api/topics/${encodeURIComponent(topic)}`;
export const groupLink = (group) => `#/groups/${encodeURIComponent(group)}`;
export const topicLink = (topic, partition) => `#/topics/${encodeURIComponent(topic)}${partition === undefined ? "" : `/${partition}`}`;
