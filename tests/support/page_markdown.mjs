// Shows texts as the page's Markdown does, in a document that only keeps what it is given.
// Arguments: the module. Standard input: a JSON array of texts; the result is an array of HTML, or of lengths of it.
import { readFileSync } from "node:fs";

class Kept {
  constructor(name) {
    this.localName = name;
    this.childNodes = [];
  }

  append(...children) {
    for (const child of children) this.childNodes.push(child);
  }

  setAttribute() {}

  addEventListener() {}

  set textContent(text) {
    this.childNodes = [text];
  }

  get html() {
    const inside = this.childNodes.map((child) => child.html ?? child).join("");
    return `<${this.localName}${this.href ? ` href="${this.href}"` : ""}>${inside}</${this.localName}>`;
  }
}

globalThis.document = { createElement: (name) => new Kept(name) };
const { markdown } = await import(process.argv[2]);
const shown = JSON.parse(readFileSync(0, "utf8")).map((text) => markdown(text).map((node) => node.html).join(""));
console.log(JSON.stringify(shown));
