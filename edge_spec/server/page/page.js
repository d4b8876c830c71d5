// The page: one conversation at a time, and a list of the others.

import * as api from "./api.js";
import { element, markdown } from "./markdown.js";
import * as store from "./store.js";
import { shownTokens } from "./tokens.js";

const $ = (id) => document.getElementById(id);
const conversations = store.load();
let current = conversations[0] ?? add();
let writing = null;
let model = "";
let picture = 0;

function add() {
  conversations.unshift(store.created());
  return conversations[0];
}

function keep() {
  current.system = $("system").value;
  const used = conversations.filter((each) => each.messages.length);
  if (!store.save(used)) tell("this browser keeps no conversations; copy what you want to keep");
}

function tell(sentence) {
  $("status").textContent = sentence;
}

// --- what is shown

function shownAnswer(message) {
  const nodes = [];
  if (message.thought) {
    const summary = element("summary", { textContent: "Thoughts" });
    nodes.push(element("details", {}, summary, element("p", { className: "thought", textContent: message.thought })));
  }
  const tokens = $("colors").checked && message.tokens?.length;
  nodes.push(...(tokens ? shownTokens(message.tokens) : markdown(message.content)));
  return nodes;
}

function shown(message, number) {
  const label = element("span", { className: "hidden", textContent: message.role === "user" ? "You: " : "Answer: " });
  if (message.role === "user") return element("li", { className: "user" }, label, message.content);
  const item = element("li", { className: "assistant" }, label, ...shownAnswer(message));
  if (number === current.messages.length - 1 && !writing) {
    const retry = element("button", { type: "button", id: "retry", textContent: "Retry" });
    retry.addEventListener("click", () => {
      current.messages.pop();
      ask(message.attempt + 1, "retry");
    });
    item.append(element("div", { className: "tools" }, retry));
  }
  return item;
}

function show() {
  $("messages").replaceChildren(...current.messages.map(shown));
  $("messages").setAttribute("aria-busy", String(Boolean(writing)));
  $("send").hidden = Boolean(writing);
  $("stop").hidden = !writing;
  $("new").disabled = Boolean(writing);
  showList();
}

// The last answer as far as it is there, once per picture: chunks may come faster than anybody can see.
function showLast() {
  if (picture) return;
  picture = requestAnimationFrame(() => {
    picture = 0;
    if (!writing) return;
    const main = document.querySelector("main");
    // Who reads further up is left there.
    const follows = main.scrollHeight - main.scrollTop - main.clientHeight < 48;
    const number = current.messages.length - 1;
    $("messages").lastElementChild?.replaceWith(shown(current.messages[number], number));
    if (follows) main.scrollTop = main.scrollHeight;
  });
}

function showList() {
  const items = conversations.filter((each) => each.messages.length || each === current).map((each) => {
    const open = element("button", { type: "button", textContent: store.titleOf(each), disabled: Boolean(writing) });
    if (each === current) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => {
      change(each);
      openList(false);
      $("question").focus();
    });
    const remove = element("button", { type: "button", textContent: "Delete", disabled: Boolean(writing) });
    remove.setAttribute("aria-label", `Delete ${store.titleOf(each)}`);
    remove.addEventListener("click", () => {
      const place = items.findIndex((item) => item.contains(remove));
      conversations.splice(conversations.indexOf(each), 1);
      change(each === current ? conversations[0] ?? add() : current);
      // The next one of the list; what was focused is gone.
      const left = document.querySelectorAll("#list li button:first-child");
      (left[Math.min(place, left.length - 1)] ?? $("new")).focus();
    });
    return element("li", {}, open, remove);
  });
  document.querySelector("#list ul").replaceChildren(...items);
}

function openList(isOpen) {
  $("list").hidden = !isOpen;
  $("list-button").setAttribute("aria-expanded", String(isOpen));
}

function change(conversation) {
  current = conversation;
  $("system").value = current.system;
  keep();
  tell("");
  show();
}

async function showMemory() {
  const found = await api.memory($("key").value).catch(() => null);
  if (!found) return;
  $("memory").max = found.budget;
  $("memory").value = found.held;
  const mib = (bytes) => Math.round(bytes / 2 ** 20).toLocaleString();
  $("bytes").textContent = `${mib(found.held)} of ${mib(found.budget)} MiB`;
}

function showFigures({ usage, edge_spec: told }) {
  const timings = told.timings[0];
  const figures = [`${timings.tokens_per_s.toFixed(0)} tokens/s`];
  if (usage.rounds) figures.push(`${(usage.completion_tokens / usage.rounds).toFixed(2)} tokens per round`);
  if (told.speed_up) figures.push(`${told.speed_up.toFixed(2)} times as fast as without drafts`);
  if (usage.drafted_tokens) figures.push(`${usage.accepted_tokens} of ${usage.drafted_tokens} drafted ones accepted`);
  $("speed").textContent = figures.join(" · ");
  if (told.notices.length) tell(told.notices.join(" "));
}

// --- what is asked

function request(attempt) {
  const system = $("system").value.trim();
  const length = Number($("length").value);
  const temperature = $("temperature").value;
  const told = current.messages.map(({ role, content }) => ({ role, content }));
  return {
    // Where something is left out, the server has its own.
    ...(model ? { model } : {}),
    messages: system ? [{ role: "system", content: system }, ...told] : told,
    ...(temperature ? { temperature: Number(temperature) } : {}),
    ...(length > 0 ? { max_tokens: length } : {}),
    seed: (current.seed ??= Math.floor(Math.random() * 2 ** 32)) + attempt,
  };
}

// Ask for an answer to what has been said; `back` names what has the focus then, if it is on a button that goes away.
async function ask(attempt = 0, back = "question") {
  tell("");
  $("said").replaceChildren();
  const isOnButton = ["send", "retry"].includes(document.activeElement?.id);
  writing = new AbortController();
  const asked = request(attempt);
  const message = { role: "assistant", content: "", thought: "", tokens: [], attempt };
  current.messages.push(message);
  show();
  if (isOnButton) $("stop").focus();
  const main = document.querySelector("main");
  main.scrollTop = main.scrollHeight;
  try {
    for await (const chunk of api.answer(asked, $("key").value, writing.signal)) {
      for (const { delta, token_events: events } of chunk.choices) {
        message.content += delta.content ?? "";
        message.thought += delta.reasoning_content ?? "";
        message.tokens.push(...(events ?? []).map((event) => [event.text, event.drafted_by, event.round]));
      }
      if (chunk.usage) showFigures(chunk);
      else showLast();
    }
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
    if (!message.content && !message.thought) {
      current.messages.pop();
      if (error.name !== "AbortError") $("question").value ||= current.messages.pop()?.content ?? "";
    }
  }
  const isOnStop = document.activeElement === $("stop");
  writing = null;
  keep();
  show();
  if (isOnStop) ($(back) ?? $("question")).focus();
  // Read out as a whole: word by word nobody could listen.
  if (message.content) $("said").append(element("p", {}, `Answer: ${message.content}`));
  showMemory();
  if (!model) begin();
}

// --- what can be done

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("question").value.trim();
  if (!question || writing) return;
  $("question").value = "";
  current.messages.push({ role: "user", content: question });
  ask();
});
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
$("stop").addEventListener("click", () => writing?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") writing?.abort();
});
$("new").addEventListener("click", () => {
  change(current.messages.length ? add() : current);
  $("question").focus();
});
$("list-button").addEventListener("click", () => openList($("list").hidden));
$("colors").addEventListener("change", show);
const SETTINGS = ["temperature", "length", "key"];
for (const name of [...SETTINGS, "colors"]) {
  $(name).addEventListener("change", () => {
    const values = Object.fromEntries(SETTINGS.map((each) => [each, $(each).value]));
    store.saveSettings({ ...values, colors: $("colors").checked });
  });
}
$("system").addEventListener("change", keep);

async function begin() {
  try {
    const [served] = await api.models($("key").value);
    model = served.id;
    $("model").textContent = model;
    $("temperature").placeholder = served.sampling.temperature;
    tell("");
  } catch (error) {
    tell(error.message);
  }
  showMemory();
}
$("key").addEventListener("change", begin);
const settings = store.loadSettings();
for (const name of SETTINGS) $(name).value = settings[name] ?? "";
$("colors").checked = Boolean(settings.colors);
$("system").value = current.system;
show();
begin();
