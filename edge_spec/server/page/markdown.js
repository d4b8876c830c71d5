// The Markdown that models write, as nodes: nothing of an answer is ever parsed as HTML.

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*]+?)\*\*|__([^_]+?)__|\*([^*\s][^*]*?)\*|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])/;

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function inline(text) {
  const parts = [];
  for (let rest = text; rest;) {
    const found = INLINE.exec(rest);
    if (!found) {
      parts.push(rest);
      break;
    }
    parts.push(rest.slice(0, found.index));
    const [all, , code, strong, strongToo, emphasis, link] = found;
    if (code !== undefined) parts.push(element("code", { textContent: code.trim() }));
    else if (link) parts.push(element("a", { href: link, rel: "noreferrer noopener", target: "_blank", textContent: link }));
    else if (emphasis) parts.push(element("em", {}, ...inline(emphasis)));
    else parts.push(element("strong", {}, ...inline(strong ?? strongToo)));
    rest = rest.slice(found.index + all.length);
  }
  return parts;
}

export function markdown(text) {
  const nodes = [];
  const lines = text.split("\n");
  const paragraph = [];
  const flush = () => {
    if (paragraph.length) {
      const children = paragraph.flatMap((line, n) => (n ? [element("br")] : []).concat(inline(line)));
      nodes.push(element("p", {}, ...children));
    }
    paragraph.length = 0;
  };
  for (let n = 0; n < lines.length; n++) {
    const line = lines[n];
    const fence = /^\s*(```+|~~~+)/.exec(line);
    const heading = /^(#{1,6})\s+(.*)/.exec(line);
    const item = /^\s*(?:[-*+]|(\d+)[.)])\s+(.*)/.exec(line);
    if (fence) {
      flush();
      const code = [];
      while (++n < lines.length && !lines[n].trim().startsWith(fence[1])) code.push(lines[n]);
      nodes.push(element("pre", { tabIndex: 0 }, element("code", { textContent: code.join("\n") })));
    } else if (heading) {
      flush();
      nodes.push(element(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])));
    } else if (item) {
      flush();
      const name = item[1] ? "ol" : "ul";
      let list = nodes.at(-1);
      if (list?.localName !== name) {
        list = element(name, item[1] ? { start: Number(item[1]) } : {});
        nodes.push(list);
      }
      list.append(element("li", {}, ...inline(item[2])));
    } else if (line.trim()) {
      paragraph.push(line);
    } else {
      flush();
    }
  }
  flush();
  return nodes;
}
