# What Ruby programs do with threads, processes, sockets and files; prints only what is the same each time.
require 'digest'
require 'io/console'
require 'minitest'
require 'open3'
require 'pty'
require 'socket'
require 'tmpdir'

queue = Queue.new
threads = Array.new(16) { |i| Thread.new { 500.times { |n| queue << i * n } } }
threads.each(&:join)
sum = 0
sum += queue.pop until queue.empty?
puts "threads #{sum}"

reader, writer = IO.pipe
children = Array.new(8) do |i|
  fork do
    reader.close
    writer.syswrite([i * i].pack('N'))
    exit! i
  end
end
writer.close
statuses = children.map { |pid| Process.wait2(pid)[1].exitstatus }
puts "fork #{statuses.inspect} #{reader.read.unpack('N*').sum}"

ractors = Array.new(4) { |i| Ractor.new(i) { |n| (1..10_000).sum { |k| k * n } } }
puts "ractors #{ractors.sum(&:take)}"

Dir.mktmpdir do |scratch|
  server = UNIXServer.new(File.join(scratch, 'socket'))
  echo = Thread.new { 20.times { server.accept.then { |c| [c.write(c.gets), c.close] } } }
  right = Array.new(20) do |n|
    UNIXSocket.open(server.path) { |c| [c.puts("message #{n}"), c.read].last == "message #{n}\n" }
  end
  echo.join
  puts "sockets #{right.all?}"
  100.times { |n| File.write(File.join(scratch, "file#{n}"), "contents #{n}") }
  names = Dir.children(scratch).grep(/file/).sort
  puts "files #{Digest::SHA256.hexdigest(names.map { |name| File.read(File.join(scratch, name)) }.join)}"
end

out, status = Open3.capture2('sort -n', stdin_data: (1..1000).to_a.reverse.join("\n"))
puts "process #{Digest::SHA256.hexdigest(out)} #{status.exitstatus}"

PTY.spawn('stty size; tty >/dev/null && echo terminal') do |output, input, pid|
  input.winsize = [33, 99] if input.respond_to?(:winsize=)
  text = begin
    output.read
  rescue Errno::EIO
    ''
  end
  Process.wait(pid)
  puts "pty #{$?.exitstatus} #{text.empty? || text.include?('terminal')}"
end

class Sums < Minitest::Test
  def test_objects_survive_compaction
    kept = Array.new(10_000) { |n| "kept #{n}" }
    GC.start
    GC.compact
    assert_equal 'kept 9999', kept.last
    assert_equal 10_000, kept.uniq.size
  end
end
Minitest.seed = 1
puts "minitest #{Minitest::Runnable.runnables.sum { |r| r.runnable_methods.count { |m| r.new(m).run.passed? } }}"
