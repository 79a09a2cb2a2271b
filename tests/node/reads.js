// What the JavaScript client reads from a server, as one JSON document.
//
// Run against the apiserver and against the proxy by tests/conformance/clients.rs, which compares the two. It says
// "ready" when its informer has listed; the document ends with what the informer was told up to an object named "last".

import { parseArgs } from 'node:util';

import * as k8s from '@kubernetes/client-node';

// Ends a hang, and nothing else: a watch is read until it has told of the object that comes last.
const WATCH_SECONDS = 600;
// A server that could not find out in time how far its storage is says this, and is to be asked again.
const TOO_LARGE = 'Too large resource version';

function connect({ server, ca, token }) {
  const config = new k8s.KubeConfig();
  config.loadFromClusterAndUser({ name: 'server', server, caFile: ca }, { name: 'user', token });
  return config;
}

const names = (items) =>
  items.map(({ metadata }) => [metadata.namespace, metadata.name, metadata.resourceVersion]);

// Every page: its names, how many are said to remain, and whether it is of the first one's version.
async function paged(api, namespace, limit) {
  const pages = [];
  let token, version;
  do {
    const page = await api.listNamespacedConfigMap({ namespace, limit, _continue: token });
    version ??= page.metadata.resourceVersion;
    pages.push([names(page.items), page.metadata.remainingItemCount, version === page.metadata.resourceVersion]);
    token = page.metadata._continue;
  } while (token);
  return pages;
}

// Every event of a watch, up to the first one of the object `end`. The watch itself goes on: to abort it would end it
// as an error that nobody can catch.
function watched(config, namespace, end, options) {
  return new Promise((resolve, reject) => {
    const path = `/api/v1/namespaces/${namespace}/configmaps`;
    const begin = () => {
      const events = [];
      let isLate = false;
      let isOver = false;
      const each = (type, object, event) => {
        if (isOver) return;
        isLate ||= type === 'ERROR' && object.message?.includes(TOO_LARGE);
        isOver = object.metadata?.name === end;
        events.push(event);
        if (isOver) resolve(events);
      };
      const early = (error) => reject(error ?? new Error(`the watch ended after ${events.length} events`));
      const done = (error) => (isLate ? begin() : early(error));
      new k8s.Watch(config).watch(path, { timeoutSeconds: WATCH_SECONDS, ...options }, each, done).catch(reject);
    };
    begin();
  });
}

async function refused(call) {
  try {
    await call();
  } catch (error) {
    return [error.code, JSON.parse(error.body)];
  }
  return 'no error';
}

// What an informer tells, in order, until it has told of "last"; then its store.
function informed(config, api, namespace) {
  return new Promise((resolve, reject) => {
    const told = [];
    const list = async () => {
      const listed = await api.listNamespacedConfigMap({ namespace });
      process.stdout.write('ready\n');
      return listed;
    };
    const informer = k8s.makeInformer(config, `/api/v1/namespaces/${namespace}/configmaps`, list);
    for (const verb of ['add', 'update', 'delete']) {
      informer.on(verb, ({ metadata }) => {
        told.push([verb, metadata.name, metadata.resourceVersion]);
        if (metadata.name === 'last') {
          resolve({ told, store: names(informer.list()).sort() });
        }
      });
    }
    informer.on('error', reject);
    informer.start();
  });
}

async function main() {
  const text = { type: 'string' };
  const options = { server: text, ca: text, token: text, namespace: text, since: text, end: text };
  const { values } = parseArgs({ options });
  const { namespace, since, end } = values;
  const config = connect(values);
  const api = config.makeApiClient(k8s.CoreV1Api);
  const list = (options) => api.listNamespacedConfigMap({ namespace, ...options });
  const first = (await list()).items[0].metadata.name;
  const result = {
    list: names((await list()).items),
    'list at least': names((await list({ resourceVersion: since })).items),
    'list any': names((await list({ resourceVersion: '0' })).items),
    label: names((await list({ labelSelector: 'color=red' })).items),
    field: names((await list({ fieldSelector: `metadata.name=${first}` })).items),
    get: await api.readNamespacedConfigMap({ name: first, namespace }),
    pages: await paged(api, namespace, 7),
    watch: await watched(config, namespace, end, {}),
    'watch any': await watched(config, namespace, end, { resourceVersion: '0' }),
    'watch since': await watched(config, namespace, end, { resourceVersion: since }),
    'watch label': await watched(config, namespace, end, { resourceVersion: since, labelSelector: 'color=red' }),
    missing: await refused(() => api.readNamespacedConfigMap({ name: 'missing', namespace })),
    'bad selector': await refused(() => list({ labelSelector: 'a in' })),
    'bad field': await refused(() => list({ fieldSelector: 'spec.nope=1' })),
    informer: await informed(config, api, namespace),
  };
  // The informer goes on; stopping it would end its watch as an error that nobody can catch.
  process.stdout.write(`${JSON.stringify(result)}\n`, () => process.exit());
}

await main();
