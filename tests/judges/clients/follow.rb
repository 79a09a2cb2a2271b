# Follows ConfigMaps by kubeclient, which has no informer: list, watch from that version, list again if it is too old.
# Run by tests/judges/clients.py.

require 'kubeclient'

file, namespace = ARGV
context = Kubeclient::Config.read(file).context
client = Kubeclient::Client.new(
  context.api_endpoint, 'v1', ssl_options: context.ssl_options, auth_options: context.auth_options
)
$stdout.sync = true
version = nil
known = []

seen = lambda do |type, item|
  version = item.metadata.resourceVersion
  key = item.metadata.name
  if type == 'DELETED'
    known.delete(key)
    puts "gone #{key} #{version}"
  else
    known |= [key]
    puts "set #{key} #{version} #{item.data.value}"
  end
end

loop do
  begin
    if version.nil?
      listed = client.get_config_maps(namespace: namespace)
      gone = known - listed.map { |item| item.metadata.name }
      listed.each { |item| seen.call('MODIFIED', item) }
      version = listed.resourceVersion
      gone.each { |key| puts "gone #{key} #{version}" }
      known -= gone
    end
    client.watch_config_maps(namespace: namespace, resource_version: version).each do |notice|
      if notice.type == 'ERROR'
        version = nil if notice.object.code == 410
        break
      end
      seen.call(notice.type, notice.object)
    end
  rescue Kubeclient::HttpError, HTTP::Error, SystemCallError, IOError, OpenSSL::SSL::SSLError => error
    warn error.message
    version = nil if error.is_a?(Kubeclient::HttpError) && error.error_code == 410
  end
  sleep 1
end
