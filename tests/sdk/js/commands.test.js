import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { CommandExitError, InvalidArgumentError, NotFoundError, TimeoutError } from "e2b";
import { created, until } from "./sandboxes.js";

const MIB = 1 << 20;

test("output, exit codes and surroundings", async (t) => {
  const box = await created(t);
  const ended = await box.commands.run("echo out; echo err >&2; whoami; pwd");
  assert.deepEqual([ended.stdout, ended.stderr, ended.exitCode], ["out\nuser\n/home/user\n", "err\n", 0]);
  await assert.rejects(box.commands.run("echo out; exit 3"), (error) => {
    assert.ok(error instanceof CommandExitError);
    assert.deepEqual([error.exitCode, error.stdout], [3, "out\n"]);
    return true;
  });
  const told = await box.commands.run("whoami; pwd; echo $A", { user: "root", cwd: "/usr/lib", envs: { A: "b c" } });
  assert.equal(told.stdout, "root\n/usr/lib\nb c\n");
  await assert.rejects(box.commands.run("true", { cwd: "/no/such/directory" }), InvalidArgumentError);
});

test("streams, input, listing, connecting and killing", async (t) => {
  const box = await created(t);
  let out = "";
  const running = await box.commands.run("echo ready; cat; echo end", {
    background: true,
    stdin: true,
    onStdout: (text) => {
      out += text;
    },
  });
  await until(() => out === "ready\n", "it is ready");
  const [listed] = await box.commands.list();
  assert.deepEqual([listed.pid, listed.cmd], [running.pid, "/bin/bash"]);
  const second = await box.commands.connect(running.pid);
  await box.commands.sendStdin(running.pid, "one tü\n");
  await until(() => out === "ready\none tü\n" && second.stdout.endsWith("one tü\n"), "both hear it");
  await running.closeStdin();
  assert.equal((await running.wait()).stdout, "ready\none tü\nend\n");
  assert.equal((await second.wait()).exitCode, 0);
  const sleeper = await box.commands.run("sleep 1000", { background: true });
  const killed = assert.rejects(sleeper.wait(), (error) => error instanceof CommandExitError && error.exitCode === -1);
  assert.equal(await box.commands.kill(sleeper.pid), true);
  await killed;
  assert.equal(await box.commands.kill(sleeper.pid), false);
  await assert.rejects(box.commands.connect(sleeper.pid + 100_000), NotFoundError);
});

test("a time-out ends it", async (t) => {
  const box = await created(t);
  await assert.rejects(box.commands.run("sleep 1000", { timeoutMs: 1_000 }), TimeoutError);
  await until(async () => (await box.commands.list()).length === 0, "it is killed");
});

test("a client that leaves does not end it", async (t) => {
  const box = await created(t);
  const left = await box.commands.run("read line; echo $line >said", { background: true, stdin: true });
  await left.disconnect();
  await box.commands.sendStdin(left.pid, "still here\n");
  await until(() => box.files.exists("said"), "it went on");
});

test("64 MiB and the exit right after the last byte", async (t) => {
  const box = await created(t);
  const found = createHash("sha256");
  const ended = await box.commands.run(`yes 0123456789abcde | head -c ${64 * MIB}`, {
    onStdout: (text) => {
      found.update(text);
    },
    timeoutMs: 300_000,
  });
  const wanted = createHash("sha256");
  const piece = "0123456789abcde\n".repeat(MIB / 16);
  for (let number = 0; number < 64; number++) wanted.update(piece);
  assert.equal(ended.exitCode, 0);
  assert.equal(found.digest("hex"), wanted.digest("hex"));
});

test("a terminal", async (t) => {
  const box = await created(t);
  const decoder = new TextDecoder();
  const encoder = new TextEncoder();
  let said = "";
  const terminal = await box.pty.create({
    rows: 31,
    cols: 97,
    onData: (data) => {
      said += decoder.decode(data, { stream: true });
    },
  });
  const type = (text) => box.pty.sendInput(terminal.pid, encoder.encode(text));
  await type("stty size; echo $TERM\n");
  await until(() => said.includes("31 97") && said.includes("xterm-256color"), "it has its size");
  await box.pty.resize(terminal.pid, { rows: 40, cols: 132 });
  await type("stty size\n");
  await until(() => said.includes("40 132"), "it was resized");
  await type("exit\n");
  assert.equal((await terminal.wait()).exitCode, 0);
  assert.equal(await box.pty.kill(terminal.pid), false);
});
