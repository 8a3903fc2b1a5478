import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { AuthenticationError, Sandbox, SandboxNotFoundError, TimeoutError } from "e2b";
import { created, everything, until } from "./sandboxes.js";

test("a whole life", async (t) => {
  const box = await created(t, "base", { timeoutMs: 120_000, metadata: { who: "the test" }, envs: { A: "b c" } });
  assert.equal(await box.isRunning(), true);
  const info = await box.getInfo();
  assert.deepEqual([info.sandboxId, info.state, info.templateId], [box.sandboxId, "running", "base"]);
  assert.deepEqual(info.metadata, { who: "the test" });
  assert.ok(Math.abs(info.endAt - info.startedAt - 120_000) < 2_000);
  assert.equal((await box.commands.run('echo "$A"')).stdout, "b c\n");
  await box.setTimeout(3_600_000);
  assert.ok((await Sandbox.getInfo(box.sandboxId)).endAt - Date.now() > 3_590_000);
  await Sandbox.connect(box.sandboxId, { timeoutMs: 60_000 });
  assert.ok((await box.getInfo()).endAt - Date.now() > 3_580_000);
  assert.equal(await box.kill(), true);
  assert.equal(await box.kill(), false);
  assert.equal(await box.isRunning(), false);
  await assert.rejects(box.getInfo(), SandboxNotFoundError);
  await assert.rejects(Sandbox.connect(box.sandboxId), SandboxNotFoundError);
  await assert.rejects(box.commands.run("true"), SandboxNotFoundError);
  await assert.rejects(box.files.read("/etc/passwd"), TimeoutError);
});

test("lists page by page, by metadata and state", async (t) => {
  const mark = { mark: randomUUID(), text: "a b&c=d/é" };
  const boxes = [];
  for (let number = 0; number < 3; number++) boxes.push(await created(t, "base", { metadata: mark }));
  await boxes[1].pause();
  const ids = boxes.map((box) => box.sandboxId);
  const listed = async (query = {}, limit = 2) =>
    (await everything(Sandbox.list({ query: { metadata: mark, ...query }, limit }))).map((info) => info.sandboxId);
  assert.deepEqual((await listed()).sort(), [...ids].sort());
  assert.deepEqual(await listed({ state: ["paused"] }), [ids[1]]);
  assert.deepEqual((await listed({ state: ["running"] }, 1)).sort(), [ids[0], ids[2]].sort());
  const pages = Sandbox.list({ query: { metadata: mark }, limit: 2 });
  assert.equal((await pages.nextItems()).length, 2);
  assert.equal(pages.hasNext, true);
});

test("pause and connect keep files and end processes", async (t) => {
  const box = await created(t);
  await box.files.write("kept", "what was there\n");
  const sleeper = await box.commands.run("sleep 1000", { background: true });
  sleeper.wait().catch(() => undefined);
  assert.equal(await box.pause(), true);
  assert.equal(await box.pause(), false);
  assert.equal(await box.isRunning(), false);
  assert.equal((await box.getInfo()).state, "paused");
  await assert.rejects(box.files.read("kept"), TimeoutError);
  const again = await Sandbox.connect(box.sandboxId);
  assert.equal(again.sandboxId, box.sandboxId);
  assert.equal(await again.files.read("kept"), "what was there\n");
  assert.equal(await box.files.read("kept"), "what was there\n");
  await assert.rejects(again.commands.connect(sleeper.pid));
  assert.equal(await again.commands.kill(sleeper.pid), false);
  assert.deepEqual(await again.commands.list(), []);
});

test("use wakes what may wake by itself", async (t) => {
  const box = await created(t, "base", { lifecycle: { onTimeout: "pause", autoResume: true } });
  await box.files.write("kept", "1");
  await box.setTimeout(0);
  await until(async () => (await box.getInfo()).state === "paused", "it is paused at its time-out");
  assert.equal(await box.isRunning(), false);
  assert.equal((await box.commands.run("cat kept")).stdout, "1");
  assert.equal((await box.getInfo()).state, "running");
});

test("a paused one is killed", async (t) => {
  const box = await created(t);
  await box.pause();
  assert.equal(await Sandbox.kill(box.sandboxId), true);
  assert.equal(await Sandbox.kill(box.sandboxId), false);
});

test("snapshots and forks", async (t) => {
  const box = await created(t);
  await box.files.write("file", "then");
  const taken = await box.createSnapshot();
  await box.files.write("file", "later");
  const started = await created(t, taken.snapshotId);
  assert.equal(await started.files.read("file"), "then");
  const snapshots = await everything(Sandbox.listSnapshots({ sandboxId: box.sandboxId }));
  assert.deepEqual(
    snapshots.map((found) => found.snapshotId),
    [taken.snapshotId],
  );
  const forks = await box.fork({ count: 2 });
  for (const fork of forks) {
    assert.ok(fork instanceof Sandbox, String(fork));
    t.after(() => fork.kill());
    assert.equal(await fork.files.read("file"), "later");
  }
  assert.equal(new Set([box, ...forks].map((each) => each.sandboxId)).size, 3);
  await started.kill();
  assert.equal(await Sandbox.deleteSnapshot(taken.snapshotId), true);
  assert.equal(await Sandbox.deleteSnapshot(taken.snapshotId), false);
});

test("a key that was never issued", async () => {
  await assert.rejects(Sandbox.create({ apiKey: `e2b_${"0".repeat(40)}` }), AuthenticationError);
});

test("killed in the middle of a command", async (t) => {
  const box = await created(t);
  const running = await box.commands.run("echo ready; sleep 1000", { background: true });
  await until(() => running.stdout === "ready\n", "it is ready");
  const ended = assert.rejects(running.wait(), TimeoutError);
  assert.equal(await box.kill(), true);
  await ended;
});
