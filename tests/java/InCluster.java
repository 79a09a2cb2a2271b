import io.fabric8.kubernetes.api.model.Service;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import io.kubernetes.client.informer.SharedInformerFactory;
import io.kubernetes.client.openapi.ApiClient;
import io.kubernetes.client.openapi.apis.CoreV1Api;
import io.kubernetes.client.openapi.models.V1Service;
import io.kubernetes.client.openapi.models.V1ServiceList;
import io.kubernetes.client.util.ClientBuilder;

/**
 * Prints the time and the version of each change of Services, as an informer of the official Java client or of
 * fabric8 receives it by the in-cluster configuration.
 *
 * <p>Run in the place of a container by tests/conformance/in_cluster/pod.rs.
 */
class InCluster {
  public static void main(String[] arguments) throws Exception {
    if (arguments[0].equals("fabric8")) {
      byFabric8(arguments[1]);
    } else {
      byOfficial(arguments[1]);
    }
    Thread.currentThread().join();
  }

  static void byOfficial(String namespace) throws Exception {
    ApiClient client = ClientBuilder.cluster().build().setReadTimeout(0);
    CoreV1Api api = new CoreV1Api(client);
    SharedInformerFactory factory = new SharedInformerFactory(client);
    factory.sharedIndexInformerFor(
        params -> api.listNamespacedService(namespace)
            .resourceVersion(params.resourceVersion)
            .timeoutSeconds(params.timeoutSeconds)
            .watch(params.watch)
            .buildCall(null),
        V1Service.class,
        V1ServiceList.class)
        .addEventHandler(new io.kubernetes.client.informer.ResourceEventHandler<V1Service>() {
          @Override
          public void onAdd(V1Service service) {
            show(service.getMetadata().getResourceVersion());
          }

          @Override
          public void onUpdate(V1Service old, V1Service service) {
            show(service.getMetadata().getResourceVersion());
          }

          @Override
          public void onDelete(V1Service service, boolean isUnknown) {
          }
        });
    factory.startAllRegisteredInformers();
  }

  static void byFabric8(String namespace) {
    var client = new KubernetesClientBuilder().build();
    client.services().inNamespace(namespace).runnableInformer(0)
        .exceptionHandler((isStarted, error) -> true)
        .addEventHandler(new ResourceEventHandler<Service>() {
          @Override
          public void onAdd(Service service) {
            show(service.getMetadata().getResourceVersion());
          }

          @Override
          public void onUpdate(Service old, Service service) {
            show(service.getMetadata().getResourceVersion());
          }

          @Override
          public void onDelete(Service service, boolean isUnknown) {
          }
        })
        .start();
  }

  static void show(String version) {
    System.out.println("received " + System.currentTimeMillis() + " " + version);
    System.out.flush();
  }
}
