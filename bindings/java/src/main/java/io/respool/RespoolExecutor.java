package io.respool;

import java.util.Arrays;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.CommandObject;
import redis.clients.jedis.Connection;
import redis.clients.jedis.executors.CommandExecutor;

/** Runs each command of Jedis as a call. */
final class RespoolExecutor implements CommandExecutor {
  /** It prepares its connection first, by a hook that only a connection of Jedis runs. */
  private static final byte[] HIMPORT = {'H', 'I', 'M', 'P', 'O', 'R', 'T'};

  private final Respool respool;
  private final boolean ownsRespool;

  RespoolExecutor(Respool respool, boolean ownsRespool) {
    this.respool = respool;
    this.ownsRespool = ownsRespool;
  }

  @Override
  public <T> T executeCommand(CommandObject<T> command) {
    CommandArguments arguments = command.getArguments();
    byte[] name = arguments.getCommand().getRaw();
    if (name.length == HIMPORT.length && Arrays.equals(name, HIMPORT)) {
      try (Connection connection = respool.connections().getConnection()) {
        return connection.executeCommand(command);
      }
    }
    Outcome outcome = respool.send(Request.of(arguments), arguments.isBlocking());
    return command.getBuilder().build(outcome.decode());
  }

  @Override
  public void close() {
    if (ownsRespool) {
      respool.close();
    }
  }
}
