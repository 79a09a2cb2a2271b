// Prints the name and the value of each ConfigMap in a watch, as `fetch` or the JavaScript client reads it. fetch trusts
// the CA in NODE_EXTRA_CA_CERTS.
//
// Run by tests/conformance/compressed_clients.rs, which writes an object only after every client has printed the last
// one.

import * as k8s from '@kubernetes/client-node';

const [by, url, ca, token] = process.argv.slice(2);

function show({ metadata, data }) {
  if (data) process.stdout.write(`${metadata.name} ${data.value}\n`);
}

async function byFetch() {
  const response = await fetch(url, { headers: { authorization: `Bearer ${token}` } });
  let rest = '';
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split('\n');
    rest = lines.pop();
    lines.forEach((line) => show(JSON.parse(line).object));
  }
}

async function byClient() {
  const { origin, pathname, searchParams } = new URL(url);
  const config = new k8s.KubeConfig();
  config.loadFromClusterAndUser({ name: 'server', server: origin, caFile: ca }, { name: 'user', token });
  const options = Object.fromEntries(searchParams);
  const done = (error) => {
    throw error ?? new Error('the watch ended');
  };
  await new k8s.Watch(config).watch(pathname, options, (_, object) => show(object), done);
}

await { fetch: byFetch, client: byClient }[by]();
