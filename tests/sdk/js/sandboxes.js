// What the tests share: sandboxes that are killed when their test is over, and waiting for conditions.
import { Sandbox } from "e2b";

const LIFE_MS = 300_000;

/** Create a sandbox of the test's own. */
export async function created(test, template = "base", options = {}) {
  const box = await Sandbox.create(template, { timeoutMs: LIFE_MS, ...options });
  test.after(() => box.kill().catch(() => undefined));
  return box;
}

/** Wait until a condition holds. */
export async function until(met, what, seconds = 30) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const found = await met();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`it never came to this: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Return everything that a paginator has, page after page. */
export async function everything(pages) {
  const found = [];
  do found.push(...(await pages.nextItems()));
  while (pages.hasNext);
  return found;
}
