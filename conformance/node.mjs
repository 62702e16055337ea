// One check with the official Node client: `node node.mjs CHECK`. Started by node.py, which documents the lines.
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

const CHUNKS_MAX = 4000; // of an answer of some hundred tokens: more is a stream that does not end
const LISTED_MAX = 40; // objects of a list: it may have any number, or never end
const TOKENS_MAX = 240; // a model that was never trained on JSON writes much white space
const PROMPT = '7';
const CONTENT = '{"custom_id": "row-0"}\n{"custom_id": "röw-1"}\n';
const EVENT = 'batch.completed';
const ENDED = ['completed', 'failed', 'expired', 'cancelled'];
const SCHEMA = {
  type: 'object', properties: { even: { type: 'boolean' } }, required: ['even'], additionalProperties: false,
};
const { CONFORMANCE_MODEL: model, CONFORMANCE_EMBEDDING_MODEL: embeddingModel } = process.env;
const pollMs = Number(process.env.CONFORMANCE_POLL_MS);

class Wrong extends Error {}
class NotOffered extends Error {}

const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const shown = (value) => String(JSON.stringify(value) ?? value).slice(0, 80);

function expect(holds, did, openaiDoes) {
  if (!holds) throw new Wrong(`it ${did}; OpenAI ${openaiDoes}`);
}

function expectEqual(actual, expected, what) {
  const isEqual = JSON.stringify(actual) === JSON.stringify(expected);
  expect(isEqual, `answers ${what} ${shown(actual)}`, `answers ${shown(expected)}`);
}

async function expectRefusal(call, kind, what, fields = {}) {
  let answer;
  try {
    answer = await call();
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    expect(error instanceof kind, `refuses ${what} with ${error.status}`, `refuses it with ${kind.name}`);
    const isEnvelope = typeof error.error?.message === 'string' && typeof error.type === 'string';
    expect(isEnvelope, `refuses ${what} with ${shown(error.error)}`, 'answers {"error": {"message", "type", …}}');
    for (const [name, value] of Object.entries(fields)) expectEqual(error[name], value, `${what} with the ${name}`);
    return error;
  }
  throw new Wrong(`it accepts ${what} and answers ${shown(answer)}; OpenAI refuses it (${kind.name})`);
}

function parsed(text, what) {
  let found;
  try { found = JSON.parse(text); } catch { found = null; }
  const isKept = found !== null && Object.keys(found).join() === 'even' && typeof found.even === 'boolean';
  expect(isKept, `answers ${what} with ${shown(text)}`, 'answers JSON of the schema');
}

async function collected(items, most = CHUNKS_MAX) {
  const found = [];
  for await (const item of items) if (found.push(item) >= most) break;
  return found;
}

const chatBody = () => ({ model, messages: [{ role: 'user', content: PROMPT }], max_tokens: 16 });
const toolBody = () => ({
  ...chatBody(), max_tokens: TOKENS_MAX, tool_choice: { type: 'function', function: { name: 'record' } },
  tools: [{ type: 'function', function: { name: 'record', parameters: SCHEMA, strict: true } }],
});

async function uploaded(text = CONTENT) {
  const file = await client.files.create({ file: await OpenAI.toFile(Buffer.from(text), 'rows.jsonl'), purpose: 'batch' });
  say({ file: file.id });
  return file;
}

async function newBatch() {
  const row = { custom_id: 'row-0', method: 'POST', url: '/v1/chat/completions', body: chatBody() };
  const file = await uploaded(JSON.stringify(row) + '\n');
  const batch = await client.batches.create({
    input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h', metadata: { team: 'search' },
  });
  say({ batch: batch.id });
  return batch;
}

function expectUsage(usage, given, made) {
  const isSum = usage?.total_tokens === usage?.[given] + usage?.[made];
  expect(Number.isInteger(usage?.total_tokens) && isSum, `answers the usage ${shown(usage)}`, 'answers counts and their sum');
}

async function received(act) {
  const events = [];
  const server = createServer(async (request, response) => {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    events.push({ body: Buffer.concat(pieces).toString(), headers: request.headers });
    response.writeHead(204).end();
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  try { await act(`http://127.0.0.1:${server.address().port}/`); } finally { server.close(); }
  return events;
}

const CHECKS = {
  async models() {
    const [listed] = await collected(client.models.list());
    expectEqual(listed?.object, 'model', 'a model with the object');
    expectEqual((await client.models.retrieve(listed.id)).id, listed.id, 'a model that is asked for by its id with the id');
    await expectRefusal(() => client.models.retrieve('no-such-model'), OpenAI.NotFoundError, 'an unknown model');
  },

  async files() {
    const file = await uploaded();
    expectEqual(file.bytes, Buffer.byteLength(CONTENT), 'a file with the bytes');
    expectEqual(file.filename, 'rows.jsonl', 'a file with the filename');
    expectEqual(await (await client.files.content(file.id)).text(), CONTENT, 'the content of a file');
    expectEqual((await client.files.delete(file.id)).deleted, true, 'a deletion with deleted');
    await expectRefusal(() => client.files.retrieve(file.id), OpenAI.NotFoundError, 'a deleted file');
  },

  async 'file-pages'() {
    const ours = [(await uploaded()).id, (await uploaded()).id, (await uploaded()).id];
    const listed = await collected(client.files.list({ limit: 2, order: 'desc', purpose: 'batch' }), LISTED_MAX);
    const ids = listed.map((file) => file.id);
    expect(new Set(ids).size === ids.length, 'lists a file more than once over its pages', 'lists each once');
    expect(ours.every((id) => ids.includes(id)), 'leaves new files out of its pages', 'lists them all, newest first');
  },

  async 'batch-created'() {
    const batch = await newBatch();
    const found = await client.batches.retrieve(batch.id);
    expectEqual(found.id, batch.id, 'a batch that is asked for by its id with the id');
    expectEqual(found.metadata, { team: 'search' }, 'a batch with the metadata');
    expectEqual(found.endpoint, '/v1/chat/completions', 'a batch with the endpoint');
    await expectRefusal(() => client.batches.retrieve('batch_no_such'), OpenAI.NotFoundError, 'an unknown batch');
  },

  async 'batch-completed'() {
    let batch = await newBatch();
    while (!ENDED.includes(batch.status)) {
      await new Promise((resolve) => setTimeout(resolve, pollMs));
      batch = await client.batches.retrieve(batch.id);
    }
    expectEqual(batch.status, 'completed', 'a batch of a good row with the status');
    const line = JSON.parse(await (await client.files.content(batch.output_file_id)).text());
    expectEqual(line.custom_id, 'row-0', 'the line of a row with custom_id');
    expectEqual(line.response?.body?.object, 'chat.completion', 'the line of a row with response.body.object');
  },

  async chat() {
    const answer = await client.chat.completions.create(chatBody());
    expectEqual(answer.object, 'chat.completion', 'a chat with the object');
    expectEqual(answer.choices?.[0]?.message?.role, 'assistant', 'a message with the role');
    expectUsage(answer.usage, 'prompt_tokens', 'completion_tokens');
  },

  async 'chat-streamed'() {
    const stream = client.chat.completions.stream({ ...chatBody(), stream_options: { include_usage: true } });
    const chunks = await collected(stream);
    expectEqual(new Set(chunks.map((chunk) => chunk.id)).size, 1, 'the chunks of one answer with so many ids');
    const answer = await stream.finalChatCompletion();
    expectEqual(answer.choices[0].message.role, 'assistant', 'a streamed message with the role');
    expectUsage(answer.usage, 'prompt_tokens', 'completion_tokens');
  },

  async 'chat-refused'() {
    const hot = () => client.chat.completions.create({ ...chatBody(), temperature: 'hot' });
    await expectRefusal(hot, OpenAI.BadRequestError, 'a temperature that is a text', { param: 'temperature' });
    const unknown = () => client.chat.completions.create({ ...chatBody(), model: 'no-such-model' });
    await expectRefusal(unknown, OpenAI.NotFoundError, 'an unknown model', { code: 'model_not_found' });
  },

  async schema() {
    const format = { type: 'json_schema', json_schema: { name: 'answer', schema: SCHEMA, strict: true } };
    const answer = await client.chat.completions.create({ ...chatBody(), max_tokens: TOKENS_MAX, response_format: format });
    parsed(answer.choices[0].message.content, 'response_format json_schema');
  },

  async 'tool-streamed'() {
    const answer = await client.chat.completions.stream(toolBody()).finalChatCompletion();
    const [call] = answer.choices[0].message.tool_calls ?? [];
    expectEqual(call?.function?.name, 'record', 'a chosen function, streamed, with the name');
    parsed(call.function.arguments, 'a streamed call of a strict function');
  },

  async completions() {
    const answer = await client.completions.create({ model, prompt: [PROMPT, '8', '9'], max_tokens: 8 });
    expectEqual(answer.choices.map((choice) => choice.index), [0, 1, 2], 'three prompts with the indexes');
    expectUsage(answer.usage, 'prompt_tokens', 'completion_tokens');
  },

  async response() {
    const answer = await client.responses.create({ model, input: PROMPT, max_output_tokens: 16, store: false });
    expectEqual(answer.object, 'response', 'a response with the object');
    expect(Boolean(answer.output_text), 'answers no output_text', 'answers output_text parts');
    expectUsage(answer.usage, 'input_tokens', 'output_tokens');
  },

  async 'response-streamed'() {
    const stream = client.responses.stream({ model, input: PROMPT, max_output_tokens: 16, store: false });
    const events = await collected(stream);
    const numbers = events.map((event) => event.sequence_number);
    expectEqual(numbers, numbers.map((_, index) => index), 'a stream with the sequence numbers');
    const answer = await stream.finalResponse();
    const deltas = events.filter((event) => event.type === 'response.output_text.delta').map((event) => event.delta);
    const [part] = answer.output[0].content;
    expectEqual(deltas.join(''), part.text, 'the deltas of a text');
  },

  async embeddings() {
    const ask = { model: embeddingModel, input: [PROMPT, 'a longer text'] };
    const plain = await client.embeddings.create(ask); // base64, which the client decodes
    const floats = await client.embeddings.create({ ...ask, encoding_format: 'float' });
    for (const [index, { embedding }] of plain.data.entries()) {
      const isSame = embedding?.length > 0 && embedding.every((value, place) => Math.abs(value - floats.data[index].embedding[place]) < 1e-3);
      expect(isSame, 'answers other vectors as base64 than as floats', 'answers the same');
    }
    expectEqual(plain.data.length, 2, 'two inputs with so many vectors');
  },

  async upload() {
    const bytes = Buffer.byteLength(CONTENT);
    const upload = await client.uploads.create({ bytes, filename: 'parts.jsonl', mime_type: 'application/jsonl', purpose: 'batch' });
    say({ upload: upload.id });
    const ids = [];
    for (const line of CONTENT.split(/(?<=\n)/)) {
      const data = await OpenAI.toFile(Buffer.from(line), 'part');
      ids.push((await client.uploads.parts.create(upload.id, { data })).id);
    }
    const { status, file } = await client.uploads.complete(upload.id, { part_ids: ids });
    say({ file: file.id });
    expectEqual(status, 'completed', 'a completed upload with the status');
    expectEqual(await (await client.files.content(file.id)).text(), CONTENT, 'the content of parts');
  },

  async webhook() {
    let secret;
    const [event] = await received(async (url) => { // older clients do not manage endpoints: asked for by path
      const body = { name: 'conformance', url, event_types: [EVENT] };
      const made = await client.post('/webhook_endpoints', { body }).catch((error) => {
        throw error.status === 400 ? new NotOffered(`it may not send to ${url}: ${error.message}`) : error;
      });
      say({ endpoint: made.id });
      secret = made.signing_secret;
      await client.post(`/webhook_endpoints/${made.id}/test`, { body: { event_type: EVENT } });
    });
    expect(event, 'sends no test event', 'sends it');
    const unwrapped = await client.webhooks.unwrap(event.body, event.headers, secret).catch(() => null);
    expect(unwrapped?.type === EVENT, 'signs an event so that webhooks.unwrap refuses it', 'signs it with the secret');
  },

  async 'key-refused'() {
    const stranger = client.withOptions({ apiKey: 'sk-no-such-key' });
    await stranger.models.list().then(() => { throw new NotOffered('it accepts any key'); }, () => {});
    await expectRefusal(() => stranger.models.list(), OpenAI.AuthenticationError, 'a wrong key', { code: 'invalid_api_key' });
  },

  async 'request-id'() {
    const { request_id: id } = await client.models.list().withResponse();
    expect(Boolean(id), 'answers without x-request-id', 'sends one');
    const error = await expectRefusal(() => client.models.retrieve('no-such-model'), OpenAI.NotFoundError, 'an unknown model');
    expect(Boolean(error.requestID), 'answers an error without x-request-id', 'sends one');
  },
};

function explained(error) {
  if (error instanceof Wrong) return error.message;
  if (error instanceof OpenAI.APIError && error.status) return `it answers ${error.status} (${error.message}); OpenAI answers 200`;
  return `the client cannot use its answer: ${error?.name}: ${error?.message}`;
}

let OpenAI, client;
const [check] = process.argv.slice(2);
try {
  const required = createRequire(process.cwd() + '/'); // also looks in NODE_PATH
  OpenAI = required('openai');
  say({ version: required('openai/version').VERSION });
} catch (error) {
  say({ missing: String(error.message).split('\n')[0] });
}
if (OpenAI !== undefined && check !== undefined) {
  client = new OpenAI({ maxRetries: Number(process.env.CONFORMANCE_RETRIES), timeout: Number(process.env.CONFORMANCE_TIMEOUT_MS) });
  try {
    await CHECKS[check]();
    say({ passed: true });
  } catch (error) {
    say(error instanceof NotOffered ? { not_offered: error.message } : { failed: explained(error) });
  }
}
process.exit(0); // what the client keeps open would hold it
