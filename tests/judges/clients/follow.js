// Follows ConfigMaps by the informer of the JavaScript client. Run by tests/judges/clients.py.

import * as k8s from '@kubernetes/client-node';

const [kubeconfig, namespace] = process.argv.slice(2);
const config = new k8s.KubeConfig();
config.loadFromFile(kubeconfig);
const api = config.makeApiClient(k8s.CoreV1Api);
const path = `/api/v1/namespaces/${namespace}/configmaps`;
const informer = k8s.makeInformer(config, path, () => api.listNamespacedConfigMap({ namespace }));

const set = ({ metadata, data }) => console.log(`set ${metadata.name} ${metadata.resourceVersion} ${data.value}`);
informer.on('add', set);
informer.on('update', set);
informer.on('delete', ({ metadata }) => console.log(`gone ${metadata.name} ${metadata.resourceVersion}`));
// As its documentation shows: the informer stops at an error.
informer.on('error', (error) => {
  console.error(error);
  setTimeout(() => informer.start(), 1000);
});

function start() {
  informer.start().catch((error) => {
    console.error(error);
    setTimeout(start, 1000);
  });
}
start();
