// Asks Perfetto's trace processor questions in SQL, without a browser or a network.
//
//   node trace_processor.js ENGINE_FOLDER TRACE < queries.json > answers.json
//
// Queries are a list of texts; answers a list of {columns, rows} or {error}. The engine is the
// worker that Perfetto's user interface runs (engine_bundle.js and its WebAssembly); it takes
// and gives TraceProcessorRpc messages, of which only what is needed here is coded below.
"use strict";
const fs = require("fs");
const path = require("path");

const [folder, traceFile] = process.argv.slice(2);

// -- protocol buffers ---------------------------------------------------------------------
function varint(number) {
  const bytes = [];
  let left = BigInt(number);
  do {
    const low = Number(left & 127n);
    left >>= 7n;
    bytes.push(left ? low | 128 : low);
  } while (left);
  return Buffer.from(bytes);
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) =>
  Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

function readVarint(data, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = data[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [value, at];
  }
}

function fields(data) {
  const found = [];
  for (let at = 0; at < data.length; ) {
    let key, value;
    [key, at] = readVarint(data, at);
    const kind = Number(key & 7n);
    if (kind === 0) [value, at] = readVarint(data, at);
    else {
      let size = kind === 1 ? 8n : kind === 5 ? 4n : null;
      if (size === null) [size, at] = readVarint(data, at);
      value = data.subarray(at, at + Number(size));
      at += Number(size);
    }
    found.push([Number(key >> 3n), value]);
  }
  return found;
}

// -- the engine ---------------------------------------------------------------------------
const APPEND = 1, FINALIZE = 2, QUERY = 3;
const BLOCK = 16 << 20;
let received = Buffer.alloc(0);
const port = {
  postMessage(reply) {
    received = Buffer.concat([received, Buffer.from(reply)]);
  },
};

// The worker's way to its WebAssembly: a synchronous request.
class LocalFile {
  open(_, name) {
    this.file = path.join(folder, path.basename(String(name)));
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(this.file));
  }
}

function start() {
  const self = { location: { href: "file:///", protocol: "file:", host: "" } };
  const quiet = { ...console, log() {}, warn() {} };
  const code = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf-8");
  const shadowed = {
    self, process: undefined, location: self.location, console: quiet,
    WorkerGlobalScope: class {}, XMLHttpRequest: LocalFile,
  };
  new Function(...Object.keys(shadowed), code)(...Object.values(shadowed));
  self.onmessage({ data: port });
}

let sequence = 0;
function ask(request, ...rest) {
  sequence += 1;
  const message = Buffer.concat([number(1, sequence), number(2, request), ...rest]);
  port.onmessage({ data: new Uint8Array(bytes(1, message)) });
}

// Complete answers, as lists of fields.
function answers() {
  const found = [];
  while (received.length) {
    const [, at] = readVarint(received, 0);
    let size, from;
    try {
      [size, from] = readVarint(received, at);
    } catch {
      break;
    }
    if (received.length < from + Number(size)) break;
    found.push(fields(received.subarray(from, from + Number(size))));
    received = received.subarray(from + Number(size));
  }
  return found;
}

function load(file) {
  const handle = fs.openSync(file);
  const block = Buffer.alloc(BLOCK);
  for (let size; (size = fs.readSync(handle, block, 0, BLOCK, null)); )
    ask(APPEND, bytes(101, block.subarray(0, size)));
  ask(FINALIZE);
  for (const answer of answers())
    for (const [field, value] of answer) {
      if (field === 5) throw new Error(String(value)); // fatal_error
      if (field === 201)
        for (const [inner, text] of fields(value)) if (inner === 2) throw new Error(String(text));
    }
}

function query(sql) {
  ask(QUERY, bytes(103, bytes(1, Buffer.from(sql))));
  const columns = [], rows = [];
  let row = [], error = null;
  for (const answer of answers())
    for (const [field, result] of answer) {
      if (field !== 203) continue;
      for (const [inner, value] of fields(result)) {
        if (inner === 1) columns.push(String(value));
        if (inner === 2 && value.length) error = String(value);
        if (inner === 3)
          for (const cell of cells(value)) {
            row.push(cell);
            if (row.length === columns.length) {
              rows.push(row);
              row = [];
            }
          }
      }
    }
  return error === null ? { columns, rows } : { error };
}

function* cells(batch) {
  const parts = new Map(fields(batch));
  const integers = parts.get(2) || Buffer.alloc(0);
  const floats = parts.get(3) || Buffer.alloc(0);
  const texts = String(parts.get(5) || "").split("\0");
  let integerAt = 0, floatAt = 0, textAt = 0;
  for (const kind of parts.get(1) || []) {
    if (kind === 2) {
      let value;
      [value, integerAt] = readVarint(integers, integerAt);
      const signed = BigInt.asIntN(64, value);
      yield Number.isSafeInteger(Number(signed)) ? Number(signed) : String(signed);
    } else if (kind === 3) {
      yield floats.readDoubleLE(8 * floatAt++);
    } else if (kind === 4) {
      yield texts[textAt++];
    } else yield null;
  }
}

const queries = JSON.parse(fs.readFileSync(0, "utf-8"));
try {
  start();
  setImmediate(() => {
    load(traceFile);
    process.stdout.write(JSON.stringify(queries.map(query)));
  });
} catch (error) {
  // Without the line of the bundle, which is all of it.
  process.stderr.write(`${error.message || error}\n`);
  process.exit(1);
}
process.on("uncaughtException", (error) => {
  process.stderr.write(`${error.message || error}\n`);
  process.exit(1);
});
