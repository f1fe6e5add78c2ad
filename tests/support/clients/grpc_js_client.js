// Drives @grpc/grpc-js against a server: node grpc_js_client.js HOST:PORT PROTO. Prints "done" when all came back.
"use strict";

const assert = require("assert");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, proto] = process.argv.slice(2);
const definition = loader.loadSync(proto, { keepCase: true, longs: Number, defaults: true });
const service = grpc.loadPackageDefinition(definition).inference.GRPCInferenceService;

function request(length) {
  const values = new Float32Array(length).fill(1.5);
  return {
    model_name: "echo_FP32",
    id: "7",
    inputs: [{ name: "x", datatype: "FP32", shape: [1, length] }],
    raw_input_contents: [Buffer.from(values.buffer)],
  };
}

async function drive() {
  const options = { "grpc.keepalive_time_ms": 20000, "grpc.max_receive_message_length": -1 };
  for (const compression of [0, 2]) {
    const client = new service(address, grpc.credentials.createInsecure(), {
      ...options, "grpc.default_compression_algorithm": compression });
    const call = (name, message) => new Promise((resolve, reject) =>
      client[name](message, (error, answer) => (error ? reject(error) : resolve(answer))));
    assert.strictEqual((await call("ServerLive", {})).live, true);
    for (const length of [4, 200000]) {
      const answers = await Promise.all(Array.from({ length: 16 }, () => call("ModelInfer", request(length))));
      for (const answer of answers) {
        assert.strictEqual(answer.id, "7");
        assert.ok(answer.raw_output_contents[0].equals(request(length).raw_input_contents[0]));
      }
    }
    const refused = await call("ModelInfer", { ...request(4), model_name: "nope" }).catch((error) => error);
    assert.strictEqual(refused.code, grpc.status.NOT_FOUND);
    const stream = client.ModelStreamInfer();
    const found = [];
    const ended = new Promise((resolve, reject) => {
      stream.on("data", (message) => found.push(message.infer_response.id));
      stream.on("end", resolve);
      stream.on("error", reject);
    });
    for (let at = 0; at < 5; ++at) stream.write(request(4));
    stream.end();
    await ended;
    assert.deepStrictEqual(found, ["7", "7", "7", "7", "7"]);
    client.close();
  }
  console.log("done");
}

drive().catch((error) => {
  console.error(error);
  process.exit(1);
});
