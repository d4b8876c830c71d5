// Nodes of the page.

export const $ = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  // One by one: a call with as many arguments as an answer may have parts would fail.
  for (const child of children.flat()) made.append(child);
  return made;
}

// A place of the page that is made anew when what it shows has another key; otherwise what is selected in it stays so.
export class Place {
  node;
  #key = null;

  constructor(node = element("div")) {
    this.node = node;
  }

  // A button that had the focus gives it to the one of the same name.
  show(key, make) {
    if (key === this.#key) return;
    this.#key = key;
    const made = make();
    const focused = document.activeElement;
    const name = this.node.contains(focused) ? focused.name : "";
    this.node.replaceWith(made);
    this.node = made;
    if (name) [...made.querySelectorAll("button")].find((each) => each.name === name)?.focus();
  }
}
