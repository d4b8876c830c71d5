// The page: one conversation at a time, a list of the others, and what can be done with them.

import * as api from "./api.js";
import { addTurn, created, isBlank, isEmpty, setSystem, takeBack, turnsOf } from "./conversation.js";
import { Conversations } from "./conversations.js";
import { drafted, draftOf, keepDraft } from "./drafts.js";
import { $, element } from "./elements.js";
import { List } from "./list.js";
import { Messages } from "./messages.js";
import * as settings from "./settings.js";
import { passing, read, write } from "./storage.js";
import { isElsewhere } from "./windows.js";
import { Writing } from "./writing.js";

const SHOWN = "edge-spec shown";
const SETTINGS = ["temperature", "length", "key"];
const conversations = new Conversations(show);
const writing = new Writing(conversations, showSoon);
const messages = new Messages($("messages"), {
  retry: (turn) => ask(turn, { back: "retry" }),
  proceed: (turn) => ask(turn, { isContinued: true, back: "continue" }),
});
const list = new List($("list"), { open: choose, remove });
let current = null;
let model = "";
let picture = 0;

// The conversation that this window showed before, or the last one.
function atFirst() {
  for (const id of drafted()) if (!conversations.get(id)) conversations.add(created(id));
  return conversations.get(read(passing, SHOWN)) ?? listed()[0] ?? created();
}

function listed() {
  return conversations.all().filter((each) => each === current || !isEmpty(each) || draftOf(each));
}

function tell(sentence) {
  $("status").textContent = sentence;
}

// --- what is shown

function stateOf(turn, isHere) {
  if (isHere) return "writing";
  return turn.answer.ending ?? (isElsewhere(turn, show) ? "elsewhere" : "left");
}

function look(turn) {
  const own = writing.answerTo(turn);
  return { answer: own ?? turn.answer, state: stateOf(turn, own), isLast: isLast(turn) };
}

function isLast(turn) {
  return turn === turnsOf(current).at(-1) && !writing.isIn(current);
}

function show() {
  const main = document.querySelector("main");
  // Who reads further up is left there.
  const follows = main.scrollHeight - main.scrollTop - main.clientHeight < 48;
  const isWriting = writing.isIn(current);
  const turns = turnsOf(current);
  messages.show(turns, look, $("colors").checked);
  $("messages").setAttribute("aria-busy", String(isWriting));
  $("send").hidden = isWriting;
  $("stop").hidden = !isWriting;
  $("speed").textContent = turns.length ? look(turns.at(-1)).answer.figures : "";
  $("unkept").textContent = unkept();
  if (document.activeElement !== $("system")) $("system").value = current.system.text;
  list.show(conversations.has(current) ? listed() : [current, ...listed()], current, (each) => writing.isIn(each));
  if (follows) showEnd();
}

// Why something that is shown would be gone with this window.
function unkept() {
  if (conversations.isFull) {
    return "This browser keeps no more: what is new here is gone when the page is closed. Delete other conversations, or "
      + "copy what you need.";
  }
  if (conversations.has(current) || isEmpty(current)) return "";
  return "This conversation was deleted in another window. It is kept again when you go on with it.";
}

// Show an answer as far as it is there, once per picture: chunks may come faster than anybody can see.
function showSoon(conversation) {
  // Who deleted it elsewhere wants no more of it.
  if (conversation !== current && !conversations.has(conversation)) writing.stop(conversation);
  if (picture || conversation !== current) return;
  picture = requestAnimationFrame(() => {
    picture = 0;
    show();
  });
}

function showEnd() {
  const main = document.querySelector("main");
  main.scrollTop = main.scrollHeight;
}

function openList(isOpen) {
  $("list").hidden = !isOpen;
  $("list-button").setAttribute("aria-expanded", String(isOpen));
}

function open(conversation) {
  current = conversation;
  write(passing, SHOWN, current.id);
  $("question").value = draftOf(current);
  $("system").value = current.system.text;
  tell("");
  $("said").replaceChildren();
  show();
  showEnd();
}

async function showMemory() {
  const found = await api.memory($("key").value).catch(() => null);
  if (!found) return;
  $("memory").max = found.budget;
  $("memory").value = found.held;
  const mib = (bytes) => Math.round(bytes / 2 ** 20).toLocaleString();
  $("bytes").textContent = `${mib(found.held)} of ${mib(found.budget)} MiB`;
}

// --- what is asked

// Where something is left out, the server has its own.
function asked() {
  const length = Number($("length").value);
  const temperature = $("temperature").value;
  return {
    ...(model ? { model } : {}),
    ...(temperature ? { temperature: Number(temperature) } : {}),
    ...(length > 0 ? { max_tokens: length } : {}),
  };
}

// Ask for an answer to a turn; `back` names what has the focus then, if it is on a button that goes away.
async function ask(turn, { isContinued = false, back = "question" } = {}) {
  const conversation = current;
  const isNew = turn.draws === 0;
  const isOnButton = ["send", "retry", "continue"].includes(document.activeElement?.id);
  tell("");
  $("said").replaceChildren();
  conversations.add(conversation);
  const written = writing.write(conversation, turn, { asked: asked(), key: $("key").value, isContinued });
  show();
  showEnd();
  if (isOnButton) $("stop").focus();
  const { answer, isKept } = await written;
  const hasFailed = answer.ending === "failed";
  const isBack = isNew && hasFailed && isBlank(answer) && isSentBack(conversation, turn);
  if (conversation === current) {
    const isOnStop = document.activeElement === $("stop");
    show();
    if (isOnStop) ($(back) ?? $("retry") ?? $("question")).focus();
    if (hasFailed && (isBack || !isKept)) tell(answer.told);
    // Read out as a whole: word by word nobody could listen.
    if (isKept && answer.content) $("said").append(element("p", {}, `Answer: ${answer.content}`));
  } else {
    show();
  }
  showMemory();
  if (!model) begin();
}

// A question that got no answer goes back to where it was typed, unless there is something else.
function isSentBack(conversation, turn) {
  const isShown = conversation === current;
  if (isShown ? $("question").value : draftOf(conversation)) return false;
  keepDraft(conversation, turn.question);
  if (isShown) $("question").value = turn.question;
  takeBack(turn);
  conversations.keep(conversation);
  return true;
}

// --- what can be done

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("question").value.trim();
  if (!question || writing.isIn(current)) return;
  const last = turnsOf(current).at(-1);
  if (last && look(last).state === "elsewhere") {
    tell("Another window is writing an answer here; wait for it, or stop it there.");
    return;
  }
  const turn = addTurn(current, question);
  ask(turn);
  $("question").value = "";
  keepDraft(current, "");
});
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
$("question").addEventListener("input", () => {
  conversations.add(current);
  keepDraft(current, $("question").value);
});
$("stop").addEventListener("click", () => writing.stop(current));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") writing.stop(current);
});

function choose(conversation) {
  open(conversation);
  openList(false);
  $("question").focus();
}

function remove(conversation) {
  writing.stop(conversation);
  conversations.remove(conversation);
  keepDraft(conversation, "");
  if (conversation === current) open(listed()[0] ?? created());
  else show();
}

$("new").addEventListener("click", () => {
  choose(isEmpty(current) && !$("question").value ? current : created());
});
$("list-button").addEventListener("click", () => openList($("list").hidden));
$("colors").addEventListener("change", show);
$("served").addEventListener("change", () => {
  model = $("served").value;
  $("model").textContent = model;
});
for (const name of [...SETTINGS, "colors", "served"]) {
  $(name).addEventListener("change", () => {
    const values = Object.fromEntries(SETTINGS.map((each) => [each, $(each).value]));
    settings.save({ ...values, colors: $("colors").checked, model: $("served").value });
  });
}
$("options").addEventListener("submit", (event) => event.preventDefault());
$("system").addEventListener("input", () => {
  setSystem(current, $("system").value);
  conversations.add(current);
  conversations.keepSoon(current);
});
addEventListener("beforeunload", (event) => {
  if (conversations.isFull) event.preventDefault();
});

async function begin() {
  try {
    const served = await api.models($("key").value);
    const { id, sampling } = served.find((each) => each.id === (model || chosen.model)) ?? served[0];
    model = id;
    $("model").textContent = model;
    $("models").hidden = served.length < 2;
    $("served").replaceChildren(...served.map((each) => element("option", { value: each.id }, each.id)));
    $("served").value = model;
    // It is known of a model that is open.
    if (sampling) $("temperature").placeholder = sampling.temperature;
    tell("");
  } catch (error) {
    tell(error.message);
  }
  showMemory();
}
$("key").addEventListener("change", begin);
const chosen = settings.load();
for (const name of SETTINGS) $(name).value = chosen[name] ?? "";
$("colors").checked = Boolean(chosen.colors);
open(atFirst());
begin();
