// The Markdown that models write, as nodes: nothing of an answer is ever parsed as HTML.

import { copyButton } from "./copying.js";
import { element } from "./elements.js";

// Signs that turn the direction of writing around: they would let an address look like another one.
const TURNS = "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069";
const INLINE = new RegExp([
  "(`+)", // code, if as many follow
  "\\*\\*([^*]+?)\\*\\*", "__([^_]+?)__", // strong
  "\\*([^*\\s][^*]*?)\\*", // emphasis
  `!?\\[([^\\[\\]]+)\\]\\((https?:\\/\\/[^\\s()<>${TURNS}]+)\\)`, // a link with a text
  `(https?:\\/\\/[^\\s<>()${TURNS}]+[^\\s<>().,;:!?'"${TURNS}])`, // and one without
].join("|"), "g");
const FENCE = /^\s*(```+|~~~+)/;
const HEADING = /^(#{1,6})\s+(.*)/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|(\d{1,9})[.)])(\s+)(?=\S)/;
const TABLE = /^ {0,3}\|?( *:?-+:? *\|)+( *:?-+:? *)?$/;
const DEEPEST = 8;

export function markdown(text) {
  return blocks(text.split("\n"), 0);
}

function link(href, ...children) {
  return element("a", { href, rel: "noreferrer noopener", target: "_blank" }, ...children);
}

// A link's text may be anything, so where it leads stands behind it.
function namedLink(href, label) {
  const place = URL.canParse(href) ? new URL(href).host : "nowhere";
  return link(href, element("bdi", { textContent: label }), ` (${place})`);
}

// An address says where it leads, unless something stands before the host or the host is written in other letters.
function bareLink(address) {
  const host = URL.canParse(address) ? new URL(address).host : "";
  const rest = address.slice(address.indexOf("://") + 3);
  const isPlain = host && rest.startsWith(host) && /^([/?#]|$)/.test(rest.slice(host.length));
  return isPlain ? link(address, address) : namedLink(address, address);
}

// Where the run of backticks begins that ends the code after a run, for each run that has one.
function ends(text) {
  const found = new Map();
  const waiting = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (waiting.has(run.length)) found.set(waiting.get(run.length), index);
    waiting.set(run.length, index);
  }
  return found;
}

// Every step takes a piece of the text that no other takes, so the work grows as the text does.
function inline(text) {
  const parts = [];
  const ending = ends(text);
  let from = 0;
  for (;;) {
    INLINE.lastIndex = from;
    const found = INLINE.exec(text);
    if (!found) break;
    const [all, run, strong, strongToo, emphasis, label, target, address] = found;
    parts.push(text.slice(from, found.index));
    from = found.index + all.length;
    if (run) {
      const end = ending.get(found.index);
      parts.push(end === undefined ? run : element("code", { textContent: text.slice(from, end).trim() }));
      if (end !== undefined) from = end + run.length;
    } else if (target) parts.push(namedLink(target, label));
    else if (address) parts.push(bareLink(address));
    else if (emphasis) parts.push(element("em", {}, inline(emphasis)));
    else parts.push(element("strong", {}, inline(strong ?? strongToo)));
  }
  parts.push(text.slice(from));
  return parts;
}

function isTable(lines, n) {
  return lines[n].includes("|") && n + 1 < lines.length && lines[n + 1].includes("-") && TABLE.test(lines[n + 1]);
}

// Whether a line cannot continue a paragraph.
function begins(line) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(line));
}

function blocks(lines, depth) {
  const nodes = [];
  const paragraph = [];
  const flush = () => {
    if (paragraph.length) {
      const children = paragraph.flatMap((line, n) => (n ? [element("br")] : []).concat(inline(line)));
      nodes.push(element("p", {}, children));
    }
    paragraph.length = 0;
  };
  const add = (node) => {
    flush();
    nodes.push(node);
  };
  for (let n = 0; n < lines.length;) {
    const line = lines[n];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    let found = null;
    if (fence) found = code(lines, n, fence[1]);
    else if (heading) add(element(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2])));
    else if (RULE.test(line)) add(element("hr"));
    else if (QUOTE.test(line) && depth < DEEPEST) found = quote(lines, n, depth);
    else if (ITEM.test(line) && depth < DEEPEST) found = list(lines, n, depth);
    else if (isTable(lines, n)) found = table(lines, n);
    else if (line.trim()) paragraph.push(line);
    else flush();
    if (found) add(found.node);
    n = found ? found.next : n + 1;
  }
  flush();
  return nodes;
}

function code(lines, start, mark) {
  let next = start + 1;
  while (next < lines.length && !lines[next].trim().startsWith(mark)) next++;
  const text = lines.slice(start + 1, next).join("\n");
  const node = element("div", { className: "code" }, element("pre", { tabIndex: 0 }, element("code", { textContent: text })));
  if (next < lines.length) node.append(copyButton(text, "Copy the code"));
  return { node, next: next + 1 };
}

function quote(lines, start, depth) {
  let next = start;
  while (next < lines.length && QUOTE.test(lines[next])) next++;
  const inside = lines.slice(start, next).map((line) => line.replace(QUOTE, ""));
  return { node: element("blockquote", {}, blocks(inside, depth + 1)), next };
}

function list(lines, start, depth) {
  const [, indent, , number] = ITEM.exec(lines[start]);
  const node = element(number ? "ol" : "ul", number ? { start: Number(number) } : {});
  let next = start;
  while (next < lines.length) {
    const item = ITEM.exec(lines[next]);
    if (!item || item[1].length !== indent.length || Boolean(item[3]) !== Boolean(number) || RULE.test(lines[next])) break;
    const inside = [lines[next].slice(item[0].length)];
    for (next++; next < lines.length; next++) {
      const line = lines[next];
      const isDeeper = line.length - line.trimStart().length > indent.length;
      const isLazy = lines[next - 1].trim() && !begins(line);
      if (line.trim() && !isDeeper && !isLazy) break;
      inside.push(line.slice(Math.min(item[0].length, line.length - line.trimStart().length)));
    }
    const children = blocks(inside, depth + 1);
    const [first, ...others] = children;
    node.append(element("li", {}, first?.localName === "p" ? [...first.childNodes, ...others] : children));
  }
  return { node, next };
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines, start) {
  const row = (line, name) => element("tr", {}, cells(line).map((cell) => element(name, {}, inline(cell))));
  const body = element("tbody");
  let next = start + 2;
  for (; next < lines.length && lines[next].includes("|"); next++) body.append(row(lines[next], "td"));
  const node = element("table", {}, element("thead", {}, row(lines[start], "th")), body);
  return { node: element("div", { className: "table", tabIndex: 0 }, node), next };
}
