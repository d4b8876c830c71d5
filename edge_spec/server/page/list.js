// The list of conversations.

import { titleOf } from "./conversation.js";
import { element, Place } from "./elements.js";

export class List {
  #nav;
  #acts;
  #items;

  // `acts` are called with a conversation: `open`, and `remove`, which has to leave the list as it is then.
  constructor(nav, acts) {
    this.#nav = nav;
    this.#items = new Place(nav.querySelector("ul"));
    this.#acts = acts;
  }

  show(conversations, current, isWriting) {
    const lines = conversations.map((each) => [each.id, titleOf(each), each === current, isWriting(each)]);
    this.#items.show(JSON.stringify(lines), () => element("ul", {}, lines.map(([, title, isCurrent, isWritten], number) => {
      const conversation = conversations[number];
      const open = this.#button(title, `open ${conversation.id}`, () => this.#acts.open(conversation));
      if (isCurrent) open.setAttribute("aria-current", "true");
      const remove = this.#button("Delete", `remove ${conversation.id}`, () => {
        this.#acts.remove(conversation);
        this.#focus(number);
      });
      remove.ariaLabel = `Delete ${title}`;
      const note = isWritten ? [element("span", { className: "note", textContent: "being written" })] : [];
      return element("li", {}, open, note, remove);
    })));
  }

  #button(textContent, name, act) {
    const button = element("button", { type: "button", name, textContent });
    button.addEventListener("click", act);
    return button;
  }

  // What had the focus is gone: the next one gets it, or the last one.
  #focus(number) {
    const left = this.#nav.querySelectorAll("li button:first-child");
    left[Math.min(number, left.length - 1)].focus();
  }
}
