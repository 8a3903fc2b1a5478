import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { test } from "node:test";
import { FileNotFoundError, FileType, InvalidArgumentError } from "e2b";
import { created, until } from "./sandboxes.js";

const MIB = 1 << 20;

test("written and read back in every format", async (t) => {
  const box = await created(t);
  const info = await box.files.write("/home/user/a/b/text", "größer\n");
  assert.deepEqual([info.name, info.path, info.type], ["text", "/home/user/a/b/text", FileType.FILE]);
  assert.equal(await box.files.read("a/b/text"), "größer\n");
  const every = Uint8Array.from({ length: 70_000 }, (_, number) => number % 256);
  await box.files.write("bytes", every.buffer);
  assert.deepEqual(await box.files.read("bytes", { format: "bytes" }), every);
  assert.deepEqual(new Uint8Array(await (await box.files.read("bytes", { format: "blob" })).arrayBuffer()), every);
  await box.files.write("blob", new Blob([every]), { useOctetStream: true });
  const pieces = [];
  for await (const piece of await box.files.read("blob", { format: "stream" })) pieces.push(piece);
  assert.deepEqual(new Uint8Array(Buffer.concat(pieces)), every);
  await box.files.write("zipped", "again\n".repeat(1000), { gzip: true });
  assert.equal(await box.files.read("zipped", { gzip: true }), "again\n".repeat(1000));
  await box.files.write("empty", "");
  assert.equal(await box.files.read("empty"), "");
  const many = [0, 1, 2].map((number) => ({ path: `many/${number} 文`, data: `content ${number}` }));
  assert.deepEqual(
    (await box.files.writeFiles(many)).map((written) => written.path),
    many.map((file) => `/home/user/${file.path}`),
  );
  for (const file of many) assert.equal(await box.files.read(file.path), file.data);
});

test("names", async (t) => {
  const box = await created(t);
  const names = ["with space", 'it\'s "quoted"', "new\nline", "ünïcödé 文 🙂", "%41 + & = ? #", "l".repeat(255)];
  for (const name of names) await box.files.write(`names/${name}`, name);
  assert.deepEqual((await box.files.list("names")).map((entry) => entry.name).sort(), [...names].sort());
  for (const name of names) assert.equal(await box.files.read(`names/${name}`), name);
});

test("listed, made, moved and removed", async (t) => {
  const box = await created(t);
  assert.equal(await box.files.makeDir("dir/below"), true);
  assert.equal(await box.files.makeDir("dir/below"), false);
  await box.files.write("dir/below/file", "12345", { metadata: { Author: "somebody" } });
  const entries = await box.files.list("dir", { depth: 2 });
  assert.deepEqual(entries.map((entry) => entry.path).sort(), ["/home/user/dir/below", "/home/user/dir/below/file"]);
  const file = await box.files.getInfo("dir/below/file");
  assert.deepEqual([file.type, file.size, file.owner, file.metadata], ["file", 5, "user", { author: "somebody" }]);
  assert.equal((await box.files.rename("dir", "other")).path, "/home/user/other");
  assert.equal(await box.files.exists("dir"), false);
  await box.files.remove("other");
  assert.equal(await box.files.exists("other/below/file"), false);
  await assert.rejects(box.files.read("nothing"), FileNotFoundError);
  await assert.rejects(box.files.getInfo("nothing"), FileNotFoundError);
  await assert.rejects(box.files.list("/etc/passwd"), InvalidArgumentError);
});

test("64 MiB up and down", async (t) => {
  const box = await created(t);
  const piece = randomBytes(MIB);
  const wanted = createHash("sha256");
  let sent = 0;
  const stream = new ReadableStream({
    pull(controller) {
      if (sent++ === 64) return controller.close();
      wanted.update(piece);
      controller.enqueue(new Uint8Array(piece));
    },
  });
  await box.files.write("big", stream, { useOctetStream: true });
  const digest = wanted.digest("hex");
  assert.equal((await box.commands.run("sha256sum <big")).stdout.split(" ")[0], digest);
  const found = createHash("sha256");
  for await (const chunk of await box.files.read("big", { format: "stream" })) found.update(chunk);
  assert.equal(found.digest("hex"), digest);
});

test("every kind of event in a watched directory", async (t) => {
  const box = await created(t);
  await box.files.makeDir("watched/sub");
  await box.files.write("watched/before", "x");
  const seen = [];
  const exits = [];
  const watch = await box.files.watchDir("watched", (event) => seen.push(`${event.type} ${event.name}`), {
    recursive: true,
    onExit: (error) => exits.push(error),
  });
  const told = (...events) => until(() => events.every((event) => seen.includes(event)), `${events} in ${seen}`);
  await box.files.write("watched/sub/new", "1");
  await told("create sub/new", "write sub/new");
  await box.commands.run("chmod 600 watched/before");
  await told("chmod before");
  await box.files.rename("watched/before", "watched/after");
  await told("rename before", "create after");
  await box.files.remove("watched/after");
  await told("remove after");
  await watch.stop();
  await until(() => exits.length === 1, "the watch has ended");
});

test("signed URLs", async (t) => {
  const box = await created(t);
  await box.files.write("a file", "content\n");
  for (const options of [{}, { useSignatureExpiration: 60_000 }]) {
    const reply = await fetch(await box.downloadUrl("a file", options));
    assert.deepEqual([reply.status, await reply.text()], [200, "content\n"]);
  }
  const form = new FormData();
  form.append("file", new Blob(["uploaded\n"]), "any");
  const uploaded = await fetch(await box.uploadUrl("a file"), { method: "POST", body: form });
  assert.equal(uploaded.status, 200);
  assert.equal(await box.files.read("a file"), "uploaded\n");
  const url = await box.downloadUrl("a file");
  assert.equal((await fetch(url.replace("v1_", "v1_A"))).status, 401);
});
