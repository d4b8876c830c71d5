// An answer token by token: who drafted each one. Colors alone tell nobody anything, so a legend names them, and what
// is to be known of a token is told when it is pointed at, by mouse, finger or arrow keys.

import { element } from "./elements.js";

const N_STYLES = 5;
const KEYS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 };

function writers(tokens) {
  const counts = new Map([["", 0]]);
  for (const [, drafter] of tokens) counts.set(drafter ?? "", (counts.get(drafter ?? "") ?? 0) + 1);
  return counts;
}

function styleOf(names, drafter) {
  const place = names.indexOf(drafter ?? "");
  return place ? `by by-${1 + ((place - 1) % (N_STYLES - 1))}` : "by by-0";
}

const nameOf = (drafter) => (drafter ? `drafted (${drafter})` : "the model's own");

export function shownTokens(tokens) {
  const counts = writers(tokens);
  const names = [...counts.keys()];
  const legend = [...counts].map(([drafter, n]) =>
    element("li", {}, element("span", { className: styleOf(names, drafter), textContent: nameOf(drafter) }), ` ${n}`));
  const told = element("p", { className: "told", textContent: "Choose a token: tap it, or use the arrow keys." });
  told.setAttribute("role", "status");
  const spans = tokens.map(([text, drafter]) => element("span", { className: styleOf(names, drafter), textContent: text }));
  const text = element("p", { className: "tokens", tabIndex: 0 }, ...spans);
  text.setAttribute("role", "group");
  text.setAttribute("aria-label", "Tokens of the answer; arrow keys go from one to the next");
  let chosen = -1;
  const choose = (number) => {
    spans[chosen]?.removeAttribute("aria-current");
    chosen = Math.max(0, Math.min(spans.length - 1, number));
    spans[chosen].setAttribute("aria-current", "true");
    const [piece, drafter, round] = tokens[chosen];
    told.textContent = `${JSON.stringify(piece)}: ${nameOf(drafter)}${round ? `, round ${round}` : ""}`;
  };
  text.addEventListener("click", (event) => {
    if (spans.includes(event.target)) choose(spans.indexOf(event.target));
  });
  text.addEventListener("keydown", (event) => {
    const number = event.key === "Home" ? 0 : event.key === "End" ? spans.length - 1 : chosen + KEYS[event.key];
    if (Number.isNaN(number)) return;
    event.preventDefault();
    choose(number);
  });
  return [element("ul", { className: "legend", ariaLabel: "Who wrote the tokens" }, ...legend), text, told];
}
