import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.ConfigBuilder;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.Watcher;
import io.fabric8.kubernetes.client.WatcherException;
import io.fabric8.kubernetes.client.http.HttpClient;
import io.fabric8.kubernetes.client.jdkhttp.JdkHttpClientFactory;
import io.fabric8.kubernetes.client.okhttp.OkHttpClientFactory;
import io.fabric8.kubernetes.client.vertx5.Vertx5HttpClientFactory;
import io.kubernetes.client.openapi.ApiClient;
import io.kubernetes.client.openapi.apis.CoreV1Api;
import io.kubernetes.client.openapi.models.V1ConfigMap;
import io.kubernetes.client.util.ClientBuilder;
import io.kubernetes.client.util.Watch;
import io.kubernetes.client.util.credentials.AccessTokenAuthentication;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;

/**
 * Prints the name and the value of each ConfigMap in a watch, as the official Java client reads it, or fabric8's with
 * one of its HTTP clients.
 *
 * <p>Run by tests/conformance/compressed_clients.rs, which writes an object only after every client has printed the
 * last one.
 */
class LibraryWatch {
  public static void main(String[] arguments) throws Exception {
    URI url = URI.create(arguments[1]);
    String origin = url.getScheme() + "://" + url.getAuthority();
    String namespace = url.getPath().split("/")[4];
    String version = url.getQuery().split("resourceVersion=")[1];
    switch (arguments[0]) {
      case "client-java" -> byOfficial(origin, namespace, version, arguments[2], arguments[3]);
      case "fabric8-vertx" -> byFabric8(new Vertx5HttpClientFactory(), origin, namespace, version, arguments);
      case "fabric8-jdk" -> byFabric8(new JdkHttpClientFactory(), origin, namespace, version, arguments);
      case "fabric8-okhttp" -> byFabric8(new OkHttpClientFactory(), origin, namespace, version, arguments);
      default -> throw new IllegalArgumentException(arguments[0]);
    }
  }

  static void byOfficial(String origin, String namespace, String version, String ca, String token) throws Exception {
    ApiClient client = new ClientBuilder()
        .setBasePath(origin)
        .setCertificateAuthority(Files.readAllBytes(Path.of(ca)))
        .setAuthentication(new AccessTokenAuthentication(token))
        .setReadTimeout(Duration.ZERO)
        .build();
    var call = new CoreV1Api(client).listNamespacedConfigMap(namespace)
        .watch(true)
        .resourceVersion(version)
        .allowWatchBookmarks(true)
        .buildCall(null);
    var type = new com.google.gson.reflect.TypeToken<Watch.Response<V1ConfigMap>>() {}.getType();
    try (Watch<V1ConfigMap> watch = Watch.createWatch(client, call, type)) {
      for (Watch.Response<V1ConfigMap> event : watch) {
        show(event.object.getMetadata().getName(), event.object.getData());
      }
    }
  }

  // By default, fabric8 watches over a WebSocket, which is not compressed.
  static void byFabric8(
      HttpClient.Factory factory, String origin, String namespace, String version, String[] arguments)
      throws Exception {
    Config config = new ConfigBuilder(Config.empty())
        .withMasterUrl(origin)
        .withCaCertFile(arguments[2])
        .withOauthToken(arguments[3])
        .withOnlyHttpWatches(true)
        .build();
    try (KubernetesClient client =
        new KubernetesClientBuilder().withConfig(config).withHttpClientFactory(factory).build()) {
      client.configMaps().inNamespace(namespace).withResourceVersion(version).watch(new Watcher<ConfigMap>() {
        @Override
        public void eventReceived(Action action, ConfigMap map) {
          show(map.getMetadata().getName(), map.getData());
        }

        @Override
        public void onClose(WatcherException cause) {
          System.err.println("the watch ended: " + cause);
          System.exit(1);
        }
      });
      Thread.currentThread().join();
    }
  }

  static void show(String name, Map<String, String> data) {
    if (data != null) {
      System.out.println(name + " " + data.get("value"));
      System.out.flush();
    }
  }
}
