import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.http.HttpClient;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import io.fabric8.kubernetes.client.jdkhttp.JdkHttpClientFactory;
import io.fabric8.kubernetes.client.okhttp.OkHttpClientFactory;
import io.fabric8.kubernetes.client.vertx5.Vertx5HttpClientFactory;
import io.kubernetes.client.informer.SharedInformerFactory;
import io.kubernetes.client.openapi.ApiClient;
import io.kubernetes.client.openapi.apis.CoreV1Api;
import io.kubernetes.client.openapi.models.V1ConfigMap;
import io.kubernetes.client.openapi.models.V1ConfigMapList;
import io.kubernetes.client.util.ClientBuilder;
import io.kubernetes.client.util.KubeConfig;
import java.io.File;
import java.io.FileReader;

/** Follows ConfigMaps by an informer of the official Java client or of fabric8. Run by tests/judges/clients.py. */
class Follow {
  public static void main(String[] arguments) throws Exception {
    String kubeconfig = arguments[1];
    String namespace = arguments[2];
    switch (arguments[0]) {
      case "client-java" -> byOfficial(kubeconfig, namespace);
      case "fabric8-vertx" -> byFabric8(new Vertx5HttpClientFactory(), kubeconfig, namespace);
      case "fabric8-jdk" -> byFabric8(new JdkHttpClientFactory(), kubeconfig, namespace);
      case "fabric8-okhttp" -> byFabric8(new OkHttpClientFactory(), kubeconfig, namespace);
      default -> throw new IllegalArgumentException(arguments[0]);
    }
    Thread.currentThread().join();
  }

  static void byOfficial(String kubeconfig, String namespace) throws Exception {
    KubeConfig config = KubeConfig.loadKubeConfig(new FileReader(kubeconfig));
    ApiClient client = ClientBuilder.kubeconfig(config).build().setReadTimeout(0);
    CoreV1Api api = new CoreV1Api(client);
    SharedInformerFactory factory = new SharedInformerFactory(client);
    factory.sharedIndexInformerFor(
        params -> api.listNamespacedConfigMap(namespace)
            .resourceVersion(params.resourceVersion)
            .timeoutSeconds(params.timeoutSeconds)
            .watch(params.watch)
            .buildCall(null),
        V1ConfigMap.class,
        V1ConfigMapList.class)
        .addEventHandler(new io.kubernetes.client.informer.ResourceEventHandler<V1ConfigMap>() {
          @Override
          public void onAdd(V1ConfigMap map) {
            set(map.getMetadata().getName(), map.getMetadata().getResourceVersion(), map.getData().get("value"));
          }

          @Override
          public void onUpdate(V1ConfigMap old, V1ConfigMap map) {
            onAdd(map);
          }

          @Override
          public void onDelete(V1ConfigMap map, boolean isUnknown) {
            gone(map.getMetadata().getName(), map.getMetadata().getResourceVersion());
          }
        });
    factory.startAllRegisteredInformers();
  }

  static void byFabric8(HttpClient.Factory factory, String kubeconfig, String namespace) {
    Config config = Config.fromKubeconfig(new File(kubeconfig));
    var client = new KubernetesClientBuilder().withConfig(config).withHttpClientFactory(factory).build();
    client.configMaps().inNamespace(namespace).runnableInformer(0)
        .exceptionHandler((isStarted, error) -> true)
        .addEventHandler(new ResourceEventHandler<ConfigMap>() {
          @Override
          public void onAdd(ConfigMap map) {
            set(map.getMetadata().getName(), map.getMetadata().getResourceVersion(), map.getData().get("value"));
          }

          @Override
          public void onUpdate(ConfigMap old, ConfigMap map) {
            onAdd(map);
          }

          @Override
          public void onDelete(ConfigMap map, boolean isUnknown) {
            gone(map.getMetadata().getName(), map.getMetadata().getResourceVersion());
          }
        })
        .start();
  }

  static synchronized void set(String key, String version, String value) {
    System.out.println("set " + key + " " + version + " " + value);
  }

  static synchronized void gone(String key, String version) {
    System.out.println("gone " + key + " " + version);
  }
}
