// The door of the report file: the payload lies in the page itself.

import { mount } from "./report.js";

const root = document.getElementById("clearhead");
try {
  await mount(root, JSON.parse(document.getElementById("payload").textContent));
  performance.mark("clearhead:ready");
} catch (error) {
  const box = document.createElement("p");
  box.setAttribute("role", "alert");
  box.textContent = `This page could not be drawn: ${error}. It needs a browser of 2024 or later.`;
  root.prepend(box);
  throw error;
}
