// What the user does: each act is confirmed first, and its end is told.

import { byId, el, show } from "./elements.js";
import { Refused, ask, fetchTrace } from "./session.js";

const POLL_MS = 300;
const TOAST_MS = 12000;

// Answers the question that the dialog asks. A dialog that closes says so a moment later ("close"),
// and by then it may already ask the next one.
let answer = null;

/** Leave the cluster with this agent. */
export async function quit(name) {
  const text =
    `${name} hands its work over to the others and ends, and its model is saved. ` +
    "The others go on.";
  if (await confirmed("Quit cluster?", text, "Quit cluster")) {
    await told(() => ask("POST", "/leave"), () => `${name} is leaving`);
  }
}

/** Add or remove the link between this agent and a member. */
export async function changeLink(member, wanted) {
  const verb = wanted ? "Add" : "Remove";
  const text = wanted
    ? `This device and ${member.name} connect directly, and stay connected.`
    : `This device and ${member.name} stay apart until the link is added again. ` +
      "It is refused if the cluster would fall into two parts.";
  if (await confirmed(`${verb} the link to ${member.name}?`, text, `${verb} link`)) {
    const done = (end) =>
      `link to ${member.name} ${wanted ? "added" : "removed"}: in force since step ${end.step}`;
    await told(() => change("/link", { node: member.id, wanted }), done);
  }
}

/** Remove a member from the cluster, and change the token. */
export async function expel(member) {
  const text =
    `${member.name} is removed, and the cluster gets a new token so that it stays out. ` +
    "Devices that start later need the new token.";
  if (await confirmed(`Expel ${member.name}?`, text, "Expel")) {
    const end = await told(
      () => change("/expel", { node: member.id }),
      (last) => `${member.name} is out since step ${last.step}`,
    );
    if (end?.token) await showToken(member.name, end.token);
  }
}

/** Save this agent's trace as a file. */
export async function saveTrace(name) {
  await told(async () => {
    const address = URL.createObjectURL(await fetchTrace());
    const file = `${name.replace(/[^\w.-]+/g, "_")}.trace.jsonl`;
    el("a", { href: address, download: file }).click();
    setTimeout(() => URL.revokeObjectURL(address), TOAST_MS);
  }, () => "the trace is saved");
}

async function change(path, values) {
  let far = await ask("POST", path, values);
  while (far.state === "pending") {
    await new Promise((done) => setTimeout(done, POLL_MS));
    far = await ask("GET", `/changes/${far.number}`);
  }
  if (far.state === "refused") throw new Refused(far.text);
  return far;
}

/** Do `act` and tell how it went; return its value, undefined if it was refused. */
async function told(act, text) {
  try {
    const value = await act();
    toast(text(value));
    return value;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    toast(error.message, "alert");
    return undefined;
  }
}

function toast(text, role = null) {
  const line = el("p", { role }, text);
  const close = el("button", { type: "button", "aria-label": "Close this line" }, "×");
  close.onclick = () => line.remove();
  line.append(close);
  byId("toasts").append(line);
  if (!role) setTimeout(() => line.remove(), TOAST_MS);
}

function confirmed(title, text, yes) {
  return asked(title, text, yes, "Cancel", "");
}

async function showToken(name, token) {
  const text =
    `${name} is out. Every device that starts from now on needs this token; it is not shown again.`;
  await asked("The cluster has a new token", text, "", "Close", token);
}

/** Show the dialog; return whether the user has said yes. */
function asked(title, text, yes, no, token) {
  const dialog = byId("dialog");
  if (dialog.open) return Promise.resolve(false);
  answer?.();
  byId("dialog-title").textContent = title;
  byId("dialog-text").textContent = text;
  byId("dialog-no").textContent = no;
  byId("dialog-yes").textContent = yes;
  show(byId("dialog-yes"), yes !== "");
  show(byId("dialog-secret"), token !== "");
  byId("dialog-token").value = token;
  dialog.returnValue = "no"; // as Escape leaves it
  dialog.showModal();
  byId("dialog-no").focus();
  return new Promise((done) => {
    const closed = () => {
      if (!dialog.open) answer(); // otherwise it is the question before that has closed
    };
    answer = () => {
      answer = null;
      dialog.removeEventListener("close", closed);
      byId("dialog-token").value = "";
      done(dialog.returnValue === "yes");
    };
    dialog.addEventListener("close", closed);
  });
}
