// ioredis as a client of Redis Cluster: node cluster.js HOST:PORT. NODE_PATH contains ioredis. For each line of its input, the
// program uses the cluster and then prints "content".
const Redis = require("ioredis");
const assert = require("assert");
const readline = require("readline");

async function work(client) {
  const rows = {};
  for (let user = 0; user < 60; user++) {
    for (let post = 0; post < 3; post++) rows[`jspost|{u${user}}|${post}`] = `${user}.${post}`;
  }
  for (const [key, value] of Object.entries(rows)) assert.equal(await client.set(key, value), "OK");
  for (const [key, value] of Object.entries(rows)) assert.equal(await client.get(key), value);
  assert.deepEqual(await client.mget("jspost|{u1}|0", "jspost|{u1}|1"), ["1.0", "1.1"]);
  // The keys are in one slot, because this client sends a pipeline to a single node.
  const answers = await client.pipeline().get("jspost|{u2}|0").get("jspost|{u2}|2").exec();
  assert.deepEqual(answers, [[null, "2.0"], [null, "2.2"]]);
  const done = await client.multi().incr("jsn|{u3}").incr("jsn|{u3}").get("jsn|{u3}").del("jsn|{u3}").exec();
  assert.deepEqual(done.map((answer) => answer[1]), [1, 2, "2", 1]);
  for (const key of Object.keys(rows)) assert.equal(await client.del(key), 1);
}

async function main() {
  const [host, port] = process.argv[2].split(":");
  const client = new Redis.Cluster([{ host, port: Number(port) }], { slotsRefreshTimeout: 10000 });
  for await (const _ of readline.createInterface({ input: process.stdin })) {
    await work(client);
    console.log("content");
  }
  await client.quit();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
