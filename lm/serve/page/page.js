// A conversation with one or several models. Every word of a reply opens the inspector.

import { draw, make, percent } from "./inspector.js";

const $ = (id) => document.getElementById(id);
const talk = $("talk");
const inspector = $("inspector");
const state = { key: "", models: [], turns: [], opened: null };

class Fault extends Error {}

async function api(path, body) {
  const headers = { "content-type": "application/json" };
  if (state.key) headers.authorization = `Bearer ${state.key}`;
  let answer;
  try {
    answer = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  } catch {
    throw new Fault("The server does not answer.");
  }
  const data = await answer.json().catch(() => ({}));
  if (answer.status === 401) $("unlock").hidden = false;
  if (!answer.ok) throw new Fault(data.error?.message ?? `Error ${answer.status}`);
  return data;
}

// Models

async function listModels() {
  state.models = (await api("/v1/models")).data;
  $("models").replaceChildren(
    $("models").querySelector("legend"),
    ...state.models.map((model, place) => {
      const box = make("input", { type: "checkbox", value: model.id, checked: place < 3 });
      return make("label", { title: model.head }, box, model.id);
    }),
  );
  $("unlock").hidden = true;
}

function chosenModels() {
  const wanted = new Set([...$("models").querySelectorAll("input:checked")].map((box) => box.value));
  return state.models.filter((model) => wanted.has(model.id));
}

/** Settings that the user has changed, with the names of the config. */
function settings() {
  const changed = {};
  for (const [name, value] of new FormData($("settings")))
    if (value !== "") changed[name] = name === "method" ? value : Number(value);
  const samples = "temperature" in changed || "top_p" in changed;
  if (samples && !("method" in changed)) changed.method = "sample";
  return changed;
}

// Conversation

/** What a model has heard: the lines of the human, each with this model's own reply. */
function heard(id) {
  return state.turns.flatMap((turn) => {
    const said = { role: "user", content: turn.said };
    const reply = turn.replies.get(id);
    return reply?.words ? [said, { role: "assistant", content: textOf(reply) }] : [said];
  });
}

function textOf(reply) {
  return reply.words.map((word) => word.text).join("");
}

async function say(text) {
  const models = chosenModels();
  if (!models.length) return;
  $("welcome").hidden = true;
  const turn = { said: text, replies: new Map() };
  state.turns.push(turn);
  const cards = make("div", { class: "replies" });
  talk.append(make("li", {}, make("p", { class: "said" }, make("b", {}, "You"), text), cards));
  const decode = settings();
  await Promise.all(
    models.map(async (model) => {
      const reply = { model, card: make("article", { class: "reply" }), choice: 0, found: new Map() };
      reply.asked = { model: model.id, messages: heard(model.id), decode };
      turn.replies.set(model.id, reply);
      cards.append(reply.card);
      title(reply, make("p", { class: "waiting" }, "…"));
      reply.card.scrollIntoView({ block: "nearest" });
      try {
        const answer = await api("/v1/chat/completions", { ...reply.asked, logprobs: true });
        const [{ logprobs, finish_reason: end }] = answer.choices;
        reply.words = logprobs.content.map((one) => ({ text: decoded(one.bytes), probability: Math.exp(one.logprob) }));
        if (end === "stop") reply.words.push({ text: "", end: true });
        showWords(reply);
      } catch (error) {
        title(reply, make("p", { class: "fault", role: "alert" }, shown(error)));
      }
    }),
  );
}

function decoded(bytes) {
  return new TextDecoder().decode(new Uint8Array(bytes));
}

function shown(error) {
  if (!(error instanceof Fault)) console.error(error);
  return error instanceof Fault ? error.message : "The page could not show this.";
}

function title(reply, content) {
  const { id, head } = reply.model;
  const heading = make("h3", {}, id, id === head ? null : make("span", {}, head));
  reply.card.replaceChildren(heading, content);
}

/** The words as buttons. One of them is in the order of the Tab key, arrows move between them. */
function showWords(reply) {
  const pieces = []; // blanks are outside of the buttons
  const buttons = reply.words.map((word, at) => {
    const label = word.end ? "end of the reply" : word.text.trim();
    const odds = word.probability == null ? "" : `, ${percent(word.probability)}`;
    const attributes = { type: "button", class: word.end ? "word end" : "word", "aria-pressed": "false" };
    attributes.tabindex = at ? -1 : 0;
    attributes["aria-label"] = label + odds;
    attributes.title = word.end ? "the end, as a word" : odds.slice(2);
    const button = make("button", attributes, word.end ? "end" : word.text.trim());
    button.addEventListener("click", () => open(reply, at));
    pieces.push(/^\s/.test(word.text) ? " " : "", button);
    return button;
  });
  reply.buttons = buttons;
  const line = make("p", { class: "words", role: "group", "aria-label": `Reply of ${reply.model.id}` });
  if (!reply.words.some((word) => word.text)) line.append(make("span", { class: "nothing" }, "(says nothing)"));
  line.append(...pieces);
  line.addEventListener("keydown", (event) => walk(event, reply));
  title(reply, line);
}

function walk(event, reply) {
  const { buttons } = reply;
  const at = buttons.indexOf(document.activeElement);
  const targets = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 };
  const target = buttons[targets[event.key]];
  if (at < 0 || !target) return;
  event.preventDefault();
  for (const button of buttons) button.tabIndex = button === target ? 0 : -1;
  target.focus();
  if (state.opened?.reply === reply) open(reply, buttons.indexOf(target));
}

// Inspector

async function open(reply, at) {
  state.opened = { reply, at };
  for (const pressed of talk.querySelectorAll('[aria-pressed="true"]')) pressed.setAttribute("aria-pressed", "false");
  reply.buttons[at]?.setAttribute("aria-pressed", "true");
  try {
    const found = await inspected(reply, reply.choice);
    if (state.opened?.reply !== reply || state.opened.at !== at) return;
    const summary = draw(inspector, found, Math.min(at, found.steps.length - 1), {
      model: reply.model.id,
      close,
      choose: (choice) => choose(reply, choice),
    });
    $("announce").textContent = summary;
    reply.buttons[at]?.scrollIntoView({ block: "nearest" });
  } catch (error) {
    fail(error);
  }
}

/** Show a fault in the inspector, with a button that closes it. */
function fail(error) {
  const closing = make("button", { type: "button", class: "quiet" }, "Close");
  closing.addEventListener("click", close);
  inspector.replaceChildren(make("p", { class: "fault", role: "alert" }, shown(error)), closing);
  inspector.hidden = false;
}

async function inspected(reply, choice) {
  if (!reply.found.has(choice)) {
    const wanted = api("/v1/chat/inspect", { ...reply.asked, choice });
    reply.found.set(choice, wanted);
    wanted.catch(() => reply.found.delete(choice));
  }
  return reply.found.get(choice);
}

/** Take another reply that the search has kept. The conversation goes on from it. */
async function choose(reply, choice) {
  let found;
  try {
    found = await inspected(reply, choice);
  } catch (error) {
    fail(error);
    return;
  }
  const { finished } = found.replies[choice];
  reply.choice = choice;
  reply.words = found.steps.map((step, at) => ({
    text: step.text,
    probability: step.probability,
    end: finished && at === found.steps.length - 1,
  }));
  showWords(reply);
  await open(reply, 0);
}

function close() {
  const { opened } = state;
  state.opened = null;
  inspector.hidden = true;
  const button = opened?.reply.buttons[opened.at];
  button?.setAttribute("aria-pressed", "false");
  button?.focus();
}

// Events

$("say").addEventListener("submit", async (event) => {
  event.preventDefault();
  const line = $("line");
  const text = line.value.trim();
  if (!text) return;
  const button = event.target.querySelector("button");
  line.value = "";
  button.disabled = true;
  try {
    await say(text);
  } finally {
    button.disabled = false;
    line.focus();
  }
});

$("settings").addEventListener("submit", (event) => event.preventDefault());

$("reset").addEventListener("click", () => {
  state.turns = [];
  state.opened = null;
  inspector.hidden = true;
  talk.replaceChildren();
  $("welcome").hidden = false;
  $("line").focus();
});

$("unlock").addEventListener("submit", async (event) => {
  event.preventDefault();
  state.key = $("key").value;
  await start();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.opened) close();
});

async function start() {
  try {
    await listModels();
  } catch (error) {
    $("announce").textContent = shown(error);
  }
}

await start();
$("line").focus();
