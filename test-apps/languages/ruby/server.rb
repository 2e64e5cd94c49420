# Rows by WEBrick: a thread for each connection, garbage in each request, a timer.
require 'webrick'

rows = Array.new(20_000) { |n| "row #{n}" }
ticks = 0
Thread.new { loop { sleep 1; ticks += 1 } }

server = WEBrick::HTTPServer.new(BindAddress: '0.0.0.0', Port: 8080, DoNotReverseLookup: true, AccessLog: [], Logger: WEBrick::Log.new(nil, 0))
server.mount_proc('/row/') do |request, response|
  Array.new(2000) { |n| "garbage #{n}" * 3 }
  response.body = rows[Integer(request.path.split('/').last)]
end
trap('TERM') { server.shutdown }
server.start
