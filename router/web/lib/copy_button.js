// A button that copies a text and says on itself how it went.

import { copy, el } from "../dom.js";

const SHOWN_MS = 1600;

/** Return a button that copies what `read()` gives at that moment. */
export function copyButton(
  read,
  { label = "Copy", title = "Copy to the clipboard", className = "button quiet small" } = {},
) {
  const button = el("button", { type: "button", class: className, title }, label);
  let timer = 0;
  button.addEventListener("click", async () => {
    const isCopied = await copy(read());
    button.textContent = isCopied ? "Copied" : "Not allowed";
    button.title = isCopied ? title : "The browser does not allow it: select the text and copy it by hand.";
    clearTimeout(timer);
    timer = setTimeout(() => {
      button.textContent = label;
      button.title = title;
    }, SHOWN_MS);
  });
  return button;
}
