// How this page is let in, and how it asks its agent. The address that opened it has a code after
// "#", which is exchanged once for a bearer; that stays in the storage of this tab alone.

const KEY = "edgeagent-bearer";
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 5000;
const NOT_LET_IN = 4401; // the code with which the agent ends a WebSocket whose bearer is void
const ENDED = 1001;

let bearer = sessionStorage.getItem(KEY) ?? "";

/** An answer of the agent that says no. */
export class Refused extends Error {}

/** Exchange the code in the address, if there is one. Throws `Refused`. */
export async function enter() {
  const code = location.hash.slice(1);
  if (/^[\w-]{16,64}$/.test(code)) {
    history.replaceState(null, "", location.pathname); // no other tab shall open it from there
    const answer = await fetch("/session", { method: "POST", body: JSON.stringify({ code }) });
    const said = await answer.json();
    if (!answer.ok) {
      forget();
      throw new Refused(said.error);
    }
    bearer = said.bearer;
    sessionStorage.setItem(KEY, bearer);
  }
  if (!bearer) {
    throw new Refused("This page is not let in: run `edgeagent page`, which opens one that is.");
  }
}

function forget() {
  bearer = "";
  sessionStorage.removeItem(KEY);
}

/** Ask the agent; return its JSON. Throws `Refused` with its reason. */
export async function ask(method, path, values) {
  const answer = await request(method, path, values);
  const said = await answer.json();
  if (!answer.ok) throw new Refused(said.error);
  return said;
}

/** Return the agent's trace as a file. Throws `Refused`. */
export async function fetchTrace() {
  const answer = await request("GET", "/trace");
  if (!answer.ok) throw new Refused((await answer.json()).error);
  return answer.blob();
}

async function request(method, path, values) {
  const headers = { Authorization: `Bearer ${bearer}` };
  const body = values === undefined ? undefined : JSON.stringify(values);
  try {
    return await fetch(path, { method, headers, body });
  } catch {
    throw new Refused("The agent does not answer.");
  }
}

/**
 * Call `onSnapshot` with each snapshot. `onState` hears "live", "lost" (it is tried again),
 * "ended" and "void".
 */
export function watch(onSnapshot, onState) {
  let wait = FIRST_RETRY_MS;
  const connect = () => {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/live`);
    socket.onopen = () => socket.send(JSON.stringify({ bearer }));
    socket.onmessage = (message) => {
      wait = FIRST_RETRY_MS;
      onState("live");
      onSnapshot(JSON.parse(message.data));
    };
    socket.onclose = (event) => {
      if (event.code === NOT_LET_IN) {
        forget();
        onState("void");
      } else if (event.code === ENDED) {
        onState("ended");
      } else {
        onState("lost");
        setTimeout(connect, wait);
        wait = Math.min(2 * wait, LAST_RETRY_MS);
      }
    };
  };
  connect();
}
