import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.zip.GZIPInputStream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;
import okhttp3.OkHttpClient;
import okhttp3.Request;

/**
 * Prints the name and the value of each ConfigMap in a watch, as the JDK's client or okhttp reads it.
 *
 * <p>Run by tests/conformance/compressed_clients.rs, which writes an object only after every client has printed the
 * last one.
 */
class GzipWatch {
  public static void main(String[] arguments) throws Exception {
    String url = arguments[1];
    String authorization = "Bearer " + arguments[3];
    TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null);
    try (InputStream ca = new FileInputStream(arguments[2])) {
      store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(ca));
    }
    trust.init(store);
    SSLContext tls = SSLContext.getInstance("TLS");
    tls.init(null, trust.getTrustManagers(), null);
    if (arguments[0].equals("jdk")) {
      byJdk(url, authorization, tls);
    } else {
      byOkhttp(url, authorization, tls, (X509TrustManager) trust.getTrustManagers()[0]);
    }
  }

  // The JDK's client decompresses nothing itself. A BufferedReader would return each event only after the next one: the
  // decoder of an InputStreamReader reads again while InflaterInputStream.available() is 1, which it is until the end.
  static void byJdk(String url, String authorization, SSLContext tls) throws Exception {
    HttpRequest request = HttpRequest.newBuilder(URI.create(url))
        .header("Accept-Encoding", "gzip")
        .header("Authorization", authorization)
        .build();
    HttpClient client = HttpClient.newBuilder().sslContext(tls).build();
    InputStream body = new GZIPInputStream(client.send(request, BodyHandlers.ofInputStream()).body());
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    byte[] bytes = new byte[16 << 10];
    for (int read = body.read(bytes); read >= 0; read = body.read(bytes)) {
      for (int at = 0; at < read; at++) {
        if (bytes[at] == '\n') {
          show(line.toString("UTF-8"));
          line.reset();
        } else {
          line.write(bytes[at]);
        }
      }
    }
  }

  static void byOkhttp(String url, String authorization, SSLContext tls, X509TrustManager trust) throws Exception {
    OkHttpClient client = new OkHttpClient.Builder()
        .sslSocketFactory(tls.getSocketFactory(), trust)
        .readTimeout(java.time.Duration.ZERO)
        .build();
    Request request = new Request.Builder().url(url).header("Authorization", authorization).build();
    var body = client.newCall(request).execute().body().source();
    for (String line = body.readUtf8Line(); line != null; line = body.readUtf8Line()) {
      show(line);
    }
  }

  // A parser of JSON would be another dependency.
  static void show(String line) {
    if (line.contains("\"data\":{")) {
      System.out.println(text(line, "\"name\":\"") + " " + text(line, "\"value\":\""));
      System.out.flush();
    }
  }

  static String text(String line, String before) {
    int from = line.indexOf(before) + before.length();
    return line.substring(from, line.indexOf('"', from));
  }
}
