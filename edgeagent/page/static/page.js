// The page of one agent: lets itself in, then shows every snapshot that the agent sends.

import { quit, saveTrace } from "./acts.js";
import { chart } from "./charts.js";
import { byId, setText, show } from "./elements.js";
import { facts, joins, links, log, members, policy, times, waits } from "./panels.js";
import { picture } from "./picture.js";
import { enter, Refused, watch } from "./session.js";
import * as words from "./words.js";

const STATES = {
  live: "live",
  lost: "connection lost, trying again",
  ended: "this agent has ended",
  void: "not let in any more",
};

let last = null; // the last snapshot
let drawn = 0; // the width for which the pictures were drawn

function render(snapshot) {
  last = snapshot;
  const status = snapshot.status;
  document.title = `${status.node} · edgeagent`;
  setText(byId("node"), status.node);
  setText(byId("cluster-name"), `in cluster ${status.cluster}`);
  show(byId("main"), true);
  facts(snapshot);
  waits(snapshot);
  members(snapshot);
  links(snapshot);
  times(snapshot);
  joins(snapshot);
  policy(snapshot);
  log(snapshot);
  draw(snapshot);
  show(byId("quit"), true);
  byId("quit").disabled = status.phase === "leaving";
}

function draw(snapshot) {
  drawn = document.documentElement.clientWidth;
  picture(byId("picture"), snapshot);
  const text = (value) => words.loss(value);
  chart(byId("loss"), snapshot.curve.map((p) => [p[0], p[1]]), text, "Loss", { best: "lowest" });
  const samples = (value) => words.rate(value);
  chart(byId("rate"), snapshot.curve.map((p) => [p[0], p[2]]), samples, "Samples per second", {
    zero: true,
    best: "highest",
  });
}

function state(name) {
  const shown = byId("connection");
  shown.dataset.state = name;
  setText(shown, STATES[name]);
  document.body.classList.toggle("old", name !== "live");
  if (name === "ended" || name === "void") {
    byId("quit").disabled = true;
    for (const button of document.querySelectorAll("main button")) button.disabled = true;
  }
  if (name === "void") notice("This page is not let in any more: run `edgeagent page` again.");
}

function notice(text) {
  setText(byId("notice"), text);
  show(byId("notice"), text !== "");
}

async function start() {
  byId("quit").onclick = () => quit(last.status.node);
  byId("trace").onclick = () => saveTrace(last.status.node);
  window.addEventListener("resize", () => {
    if (last && drawn !== document.documentElement.clientWidth) draw(last);
  });
  try {
    await enter();
  } catch (error) {
    setText(byId("connection"), "not connected");
    byId("connection").dataset.state = "void";
    notice(error instanceof Refused ? error.message : "The agent does not answer.");
    return;
  }
  watch(render, state);
}

start();
