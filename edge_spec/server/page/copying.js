// Buttons that copy a text.

import { element } from "./elements.js";

const SHOWN_MS = 2000;

// Browsers give pages no clipboard without HTTPS, except on the same computer. What is selected they copy anywhere.
function copySelected(text) {
  const focused = document.activeElement;
  const box = element("textarea", { className: "hidden", value: text });
  document.body.append(box);
  box.select();
  const isCopied = document.execCommand("copy");
  box.remove();
  focused?.focus();
  return isCopied;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

// `name` is what others than those who see the button's place are told.
export function copyButton(text, name) {
  const button = element("button", { type: "button", name: "copy", textContent: "Copy", ariaLabel: name });
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text)) ? "Copied" : "The browser does not allow it; select the text";
    button.ariaLabel = null;
    setTimeout(() => {
      button.textContent = "Copy";
      button.ariaLabel = name;
    }, SHOWN_MS);
  });
  return button;
}
