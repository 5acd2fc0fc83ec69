// Carries out each line of the standard input, and prints the outcome.
import readline from "node:readline";

export async function serve(run) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, ...keys] = line.split(" ");
    let answer;
    try {
      answer = { value: String(await run(name.toLowerCase(), keys)) };
    } catch (error) {
      answer = { error: error.constructor.name };
    }
    console.log(JSON.stringify(answer));
  }
  process.exit(0);
}
