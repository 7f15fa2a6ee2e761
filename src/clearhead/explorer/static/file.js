// The door of the report file: the payload lies in the page itself, and the packed maps in elements after it.

import { FileDoor } from "./sources.js";
import { failed, mount } from "./page.js";

const root = document.getElementById("clearhead");
try {
  await mount(root, JSON.parse(document.getElementById("payload").textContent), new FileDoor());
  performance.mark("clearhead:ready");
} catch (error) {
  failed(root, error);
  throw error;
}
